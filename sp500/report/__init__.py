"""The report: what the runs found, as numbers, tables, figures and one page."""
