"""The one training loop, and what it talks to: a task, a worker, checkpoints."""
