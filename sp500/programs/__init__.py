"""Programs of a user's that run unchanged: their command, their output, and the tree of their processes."""
