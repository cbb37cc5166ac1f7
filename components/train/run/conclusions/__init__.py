"""What follows from the facts of a job. Pure.

In come the facts, and the limits and time budgets of the job. Out go its status, the cause of a failure, the restarts
that count, the budget that has run out, and warnings. What a fact means for the job may be changed here alone.
"""
