"""Which file each row belongs to.

In come the counts of a `Scan`, and the groups, times and fixed splits of the rows. Out go the number of rows in each
file and the file of each row of the pieces. How rows are divided among splits and shards may be changed here alone.
"""
