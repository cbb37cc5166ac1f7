"""The program that runs in every replica of a job.

It fetches the data, runs the user's program, and stores checkpoints, metrics and the model.
"""
