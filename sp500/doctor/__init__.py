"""What is wrong on this machine and with its clusters: facts are gathered at the edge and judged by pure functions."""
