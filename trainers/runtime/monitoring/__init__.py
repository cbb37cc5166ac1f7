"""What a replica tells while it works: its progress and its resource usage.

In come counts of rows and bytes, and the ends of epochs. Out go lines that the train step parses, and requests to the
status server of Kubeflow Trainer. What is measured, how often, and the form of the lines may be changed here alone.
"""
