"""The section of the report on searches."""
