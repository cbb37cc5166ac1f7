"""From the objects of a job to facts: what happened to its replicas, and what counts. Pure.

In come the objects of a job as the watches bring them, the lines of its replicas, and its limits. Out go the facts of
the job and its replicas, whether it may restart, and its end with the reason. Which failure is the first, which follow
from it, and for which limit each counts may be changed here alone.
"""
