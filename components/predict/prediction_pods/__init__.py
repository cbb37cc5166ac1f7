"""The prediction in pods.

In come the parameters of the step and the settings of its pods. Out go the predictions, as if the step had made them
itself. What the step and its pods tell each other may be changed here alone.
"""
