"""The rows that a model is asked about.

In come a table, arrays, images or a dataset, and the columns that the model takes. Out go rows by parts, in the order
of the source, and counts of what the model has not seen. How rows are read and matched to columns may be changed here
alone.
"""
