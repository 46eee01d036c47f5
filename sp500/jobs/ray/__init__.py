"""Jobs on a Ray cluster that runs."""
