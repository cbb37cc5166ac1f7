"""From the objects of a job to facts: what happened to its replicas, and what counts. Pure.

In come the objects of a job as the watches bring them, the lines of its replicas, and its limits. Out go the facts of
the job and its replicas, whether it may restart, and its end with the reason. Which failures of the
cluster follow from which may be changed here alone. What one failure means is in `conclusions/`.
"""
