"""Input and output of entry scripts: flags, output and progress."""
