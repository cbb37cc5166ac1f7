"""What fine-tunes a language model.

In come rows for language models, the folder of a model, and the parameters. Out go an adapter or a complete model, and
checkpoints. trl is used in objectives.py alone, and peft in adapters.py, so that another library or version may
replace them there.
"""
