"""What this library uses of Python and the frameworks without their promise.

In come their objects. Out go functions and settings, each with its reason, the versions that need it and its test. What
a new version needs, or needs no more, may be changed here alone.
"""
