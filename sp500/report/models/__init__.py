"""The section of the report on trained models."""
