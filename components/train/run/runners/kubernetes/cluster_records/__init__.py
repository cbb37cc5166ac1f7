"""What one object of the cluster says: a pod, a job, an event. Pure.

In come objects as the API server returns them. Out go the states and replicas of pods, the end of a job, the attempt of
a TrainJob, warnings, and times in seconds since 1970. Which fields, labels and reasons are read may be changed here
alone.
"""
