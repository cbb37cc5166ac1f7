"""What people see of a running job.

In come facts of the job, lines of its replicas and entries of the step's log. Out go the form of the entries, what each
line is, the table of the replicas' progress, and the annotations of the job. What people see of the progress may be
changed here alone.
"""
