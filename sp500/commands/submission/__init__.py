"""The verbs of `sp500 jobs` that describe a job: submit, render and rehearse, with what they share."""
