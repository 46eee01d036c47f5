"""The verbs of `sp500 jobs` that show and change the queue."""
