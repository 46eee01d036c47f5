"""Ten words that a reader of the report may not know."""

from __future__ import annotations

WORDS = {
    "Arm": "One of the ways to run the same thing that are compared: one process, packed, streaming, Ray.",
    "Packed": "Several small models of one shape, trained as one in a process.",
    "Streaming": "Training from files, one after another; no array holds all of the data.",
    "Naive forecast": "A forecast without a model, such as the mean of the training years.",
    "Naive kept": "No epoch was better than the naive forecast from which training starts.",
    "95% interval": "Where the true value lies for test sets like this one, in 95 of 100 cases.",
    "Validation, test": "Dates that choose the model, and later dates that judge it.",
    "IC": "Information coefficient: rank correlation of forecast and outcome; 0 is chance.",
    "Net Sharpe": "Yearly return over its deviation, after costs of trading.",
    "Fingerprint": "Hash of the settings that decide a result; arms with equal ones are comparable.",
}
