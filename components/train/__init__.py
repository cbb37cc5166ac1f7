"""The engine of `train`: from the dict that says how a training is distributed to the job, its end and its model."""
