"""Why and how a replica ends.

In come signals, the heartbeat of the train step, and the error or the exit code of the program. Out go the exit code of
the replica, notices to other replicas, and which checkpoint the next start gets. When a replica ends, and what it does
before, may be changed here alone.
"""
