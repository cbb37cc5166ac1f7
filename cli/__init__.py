"""The command line: sets up a namespace, checks a cluster, compiles the steps, and prints what a training creates."""
