"""Tasks and models that a user brings: found by reference, checked before any import, kept with the run."""
