"""The first screen of the report: one headline, and five questions that are answered by a number each."""
