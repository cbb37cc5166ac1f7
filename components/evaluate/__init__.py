"""The step that scores a model on a split of a dataset."""
