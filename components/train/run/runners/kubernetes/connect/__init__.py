"""The connection to the API server of a job.

In come the Secret of another cluster, or a connection to the step's own, and the path of a job. Out go a connection
whose token is renewed while the step runs, and the refusal of an API server that no longer admits the step. Which
accounts a step can use and renew, and what counts as a refusal, may be changed here alone.
"""
