"""A page on this machine alone that renews itself."""
