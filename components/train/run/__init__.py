"""A training from its request to its end: starts the job, follows it, and judges it."""
