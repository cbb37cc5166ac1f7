"""Rows on the disk, in pieces that fit into memory.

In come batches of rows with random keys, in the order of the source. Out go the pieces, whose rows are in random order,
and the codes of their texts. How many pieces there are and how they are stored may be changed here alone.
"""
