"""The verbs of `sp500`: each a frozen settings model and a main(argv) that parses, calls and prints."""
