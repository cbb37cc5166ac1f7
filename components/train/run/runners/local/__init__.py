"""Runner that runs the replicas of a job as processes of this machine."""
