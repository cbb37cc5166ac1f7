"""What scores a language model.

In come rows for language models, the folder of a model, and the parameters of the evaluation. Out go the loss of each
row, and scores of tasks. How a model is loaded to be scored, and lm-evaluation-harness, may be changed here alone.
"""
