"""A RayCluster manifest run as processes on this machine."""
