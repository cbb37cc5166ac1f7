"""The replicas of a job as processes of this machine."""
