"""The verbs `sp500 runs ...`."""
