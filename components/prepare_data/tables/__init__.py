"""Readers: one for each format of files.

In come the files of a source and the options. Out goes a `Source` with the kinds of its columns, whatever the format
is. How a format is recognized, divided and read may be changed here alone.
"""
