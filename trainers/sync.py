"""Functions for training functions: `flush` stores checkpoints at once, `record_epoch` stores the metrics of an epoch.

This import path is public. The package `kfp_distributed.trainers` does not import the client of the object store.
"""

from kfp_distributed.trainers.runtime.sync import flush, record_epoch

__all__ = ["flush", "record_epoch"]
