"""What makes KFP components of the steps' functions, and the protocols of what KFP gives to them.

In come the function of a step, its packages, and the delivery that a user chose. Out goes a component of KFP that finds
the library where it runs, and takes the values that users pass. What this library uses of kfp without its promise, and
how a compiled step gets the library and its packages, may be changed here alone.
"""
