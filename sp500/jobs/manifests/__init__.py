"""A job as manifests of Kubernetes, and the rules that these keep."""
