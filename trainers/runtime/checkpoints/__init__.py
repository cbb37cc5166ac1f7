"""Checkpoints: from a folder that a program writes to the object store, and back.

In come local folders, or the parts of the ranks of a sharded checkpoint. Out go uploads in the background, and the
newest checkpoint that is complete. When a checkpoint counts as complete, how it is stored and how many are kept may be
changed here alone.
"""
