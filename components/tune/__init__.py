"""The step `tune`: searches for the parameters of a training by trials, each of which is a training like any other.

In come a dataset, a program and a search space, out comes the best model with its parameters. What a trial is and how
it ends may be changed in `components/train` alone, and how the next one is chosen is Optuna's.
"""
