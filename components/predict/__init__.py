"""The step `predict`: the answers of a model for every row of a dataset or a table."""
