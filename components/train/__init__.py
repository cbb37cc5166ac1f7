"""The `train` step: from its specification to a job, and from the job to a model."""
