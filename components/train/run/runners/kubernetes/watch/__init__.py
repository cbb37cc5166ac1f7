"""What happens to the objects of a job while it runs.

In come the paths of a job, its pods and its events. Out go one queue of news, which has each change, each line and each
refused request, and the next pod whose events are to be listed. How watches survive a disconnect, and how often events
are asked for, may be changed here alone.
"""
