"""Where rows come from: the files of a source, and their bytes.

In comes the address of a source. Out go its files and what is left out of them, their parts, their bytes or text, and
the form in which readers yield rows. Where files may lie and which of them are read may be changed here alone.
"""
