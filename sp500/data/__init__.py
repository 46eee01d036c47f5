"""Prices, features, splits, normaliser, windows, batches. Each step is one function, none skips back."""
