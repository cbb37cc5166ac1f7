"""How good a model is, by its answers.

In come the answers of a model and the true values, batch by batch. Out go scores, curves, the worst mistakes, and
whether the model is good enough. How scores are computed in bounded memory may be changed here alone.
"""
