"""`sp500 mcp`: the queue for an agent, and its tools."""
