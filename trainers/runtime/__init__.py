"""The entry program of every replica: fetches data, runs the program, stores checkpoints, metrics and the model."""
