"""Runner that runs the replicas of a job as pods of a Kubernetes cluster."""
