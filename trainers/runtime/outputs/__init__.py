"""What remains of a training: the model with its signature, and the metrics.

In come the folders of the program and the metrics of its epochs. Out go the model with its manifest, the files of
metrics and the logs for TensorBoard. What is stored beside a model, and how its inputs and outputs are named, may be
changed here alone.
"""
