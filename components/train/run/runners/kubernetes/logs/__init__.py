"""The lines that replicas print.

In come the containers of pods that have started. Out go the lines of their logs, each exactly once and with its time,
and whether all lines of an ended job have been read. How many connections read them, whose turn it is, and how a broken
connection is resumed may be changed here alone.
"""
