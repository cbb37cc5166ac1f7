"""What a training is asked for.

In come the parameters of the step, the manifests of the datasets and the checkpoints of another training. Out go a job
that can be started, or the reason why none can, and the copied checkpoints. What a request is checked for may be
changed here alone.
"""
