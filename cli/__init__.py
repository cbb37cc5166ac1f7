"""The command line.

Its commands set up a namespace and check a cluster; list, show, follow and cancel trainings; compile the steps and
print what they create; list, move and serve models.
"""
