"""The verbs of `sp500 cluster`."""
