"""What all trainers do with an epoch: whether it is the best one, whether it diverges, where to resume.

Metrics of an epoch come in, and what to keep and when to end goes out.
"""
