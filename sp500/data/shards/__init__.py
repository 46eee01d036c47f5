"""Training series on disk: written by one process or many, read in bounded memory."""
