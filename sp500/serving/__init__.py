"""A trained run that answers."""
