"""The trainings of a namespace: those in the cluster, and those whose jobs are gone.

In come objects and logs of a cluster, and records in the object store. Out go the rows of the tables of trainings, the
facts of a running one, and the lines of a log. How trainings are found and read may be changed here alone.
"""
