"""What is to be run: from `distribution_specification` to the replicas and the Kubernetes objects of a job. Pure."""
