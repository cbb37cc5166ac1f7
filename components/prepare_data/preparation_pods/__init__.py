"""The preparation in pods.

In come the address of a source, the parameters of the step and the settings of its pods. Out go the manifests and the
overview, as if the step had prepared the data itself. What the step and its pods tell each other may be changed here
alone.
"""
