"""What this machine has: cores, memory, a disk, and a token for Ray clusters."""
