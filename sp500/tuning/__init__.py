"""Hyper-parameter search: which configs, tried one after another, and the ledger that loses none."""
