"""Requests and answers of an agent. The tools are among the commands, since they act on the queue."""
