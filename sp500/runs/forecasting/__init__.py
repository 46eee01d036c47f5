"""How long a job will take with more workers: measured runs, the law fitted to them, the forecast."""
