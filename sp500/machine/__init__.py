"""What this machine has: cores, memory and a disk."""
