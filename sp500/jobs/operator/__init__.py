"""The rules that the KubeRay operator checks, and ours."""
