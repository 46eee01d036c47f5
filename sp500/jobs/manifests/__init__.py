"""Kubernetes manifests of a job and of a server."""
