"""`sp500 serve`, and what it starts."""
