"""The objects of a job in the cluster: created, deleted, and gone.

In come the described objects of a job, and what the API server serves and permits. Out go the operator that runs the
job, and the created objects, or the reason why they cannot exist, with the command that mends it. What is checked
before, in which order objects are created and deleted, and how long each may take may be changed here alone.
"""
