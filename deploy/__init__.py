"""The Kubernetes objects that a cluster needs, as files for `kubectl apply` and for the command line."""
