"""The Kubernetes objects that a cluster needs, as YAML files for `kubectl apply` and `kfp-distributed install`."""
