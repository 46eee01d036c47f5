"""Jobs on Kubernetes, as RayJobs."""
