"""The command line: looks a cluster over before the first training, and shows what a training would create there."""
