"""What `train_specification` says a replica runs: a trainer, a function or a command.

A dict or a Python function comes in, and the program with its parameters and packages goes out. The names of
the trainers with their types of job and packages are here; their functions are in `trainers/`.
"""
