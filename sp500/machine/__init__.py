"""Resources of this machine: cores, memory, a disk, and a token for Ray clusters."""
