"""Verbs of `sp500 models`."""
