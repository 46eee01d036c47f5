"""Experiments as jobs: on this machine, on a Ray cluster, on KubeRay."""
