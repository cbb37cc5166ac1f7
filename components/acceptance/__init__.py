"""What decides about a model by its scores. Pure.

In come the manifests of a dataset and of a model, and scores. Out go whether the dataset has rows that trained the
model, and whether a score is good enough. What counts as new rows and as good may be changed here alone.
"""
