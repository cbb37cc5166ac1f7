"""What a user is told about the data: warnings, and the overview.

In come counts of columns and rows in the form of the dataset. Out go lines of the log, statistics of the columns and
the page of the overview. What is worth a warning and what the overview shows may be changed here alone.
"""
