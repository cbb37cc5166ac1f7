"""The rows of a rank, on their way from the shards to the steps of a training.

In come the manifest of a dataset, the part of a rank, and the seed and the epoch. Out go batches in an order that
resumes, and what the manifest says about inputs and labels. How rows are read, cached, ordered and served may be
changed here alone.
"""
