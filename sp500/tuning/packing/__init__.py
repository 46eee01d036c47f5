"""Many small configs trained at once as one model with batched weights."""
