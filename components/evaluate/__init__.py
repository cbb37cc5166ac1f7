"""The step `evaluate`: how well a model does on a split of a dataset."""
