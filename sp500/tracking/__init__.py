"""A one-way mirror of the runs folder in MLflow. Training knows nothing of it."""
