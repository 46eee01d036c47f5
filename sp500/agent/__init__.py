"""What an agent may ask for, and what it is told; the tools are among the commands, since they act on the queue."""
