"""Networks from a window of features to a forecast; each in its own file, none imports another."""
