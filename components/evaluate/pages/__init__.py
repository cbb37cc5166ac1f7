"""The pages of an evaluation. Pure.

In come the scores of a model, its signature and the manifest of the dataset. Out go the tables and charts of the
report. What the report shows may be changed here alone, with its template.
"""
