"""Estimators: models with a `fit` of their own, as scikit-learn has them, and their files."""
