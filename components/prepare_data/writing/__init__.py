"""The files of a dataset.

In come the pieces, the `Scan` and the file of each row. Out go the shards of each split with its manifest, and the
statistics of their rows. How shards are written, compressed and stored may be changed here alone.
"""
