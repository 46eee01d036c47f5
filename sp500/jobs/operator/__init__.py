"""Rules for manifests: those that the KubeRay operator checks, and those of this project."""
