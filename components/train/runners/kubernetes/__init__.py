"""The replicas of a job as pods of a Kubernetes cluster."""
