"""The pass over a source.

In come the rows of a `Source`, as a whole or by chunks. Out go the pieces and a `Scan` of all rows: vocabularies,
classes, counts and warnings. What is checked in each row and how the results of chunks are merged may be changed here
alone.
"""
