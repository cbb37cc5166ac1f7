"""Where the replicas of a training job run: the protocol of a runner, and one file for each runner."""
