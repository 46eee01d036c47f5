"""The experiments as verbs: `sp500 train`, and the same as `python experiments/train.py`."""
