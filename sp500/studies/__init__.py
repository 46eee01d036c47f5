"""The experiments as plain functions: train, search, scale, walk_forward."""
