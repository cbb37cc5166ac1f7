"""What an installation of Kubeflow Pipelines says about a store: endpoint, keys, placeholders, folders.

A namespace or environment comes in, and the endpoint with its keys goes out. The names that the backend of Kubeflow
Pipelines uses may be changed here alone.
"""
