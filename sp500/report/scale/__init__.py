"""The section of the report on scale experiments."""
