"""The same experiment on a laptop and on a Ray cluster, and what the cluster bought."""

__version__ = "0.1.0"
