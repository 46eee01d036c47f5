"""What an entry script shows and reads: flags, output and progress."""
