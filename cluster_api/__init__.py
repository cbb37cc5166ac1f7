"""The client of the Kubernetes API. All parts of the library read and write the cluster through it."""
