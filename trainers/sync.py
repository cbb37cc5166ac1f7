"""Functions for training functions.

`record_epoch` stores the metrics and the checkpoint of an epoch in the background, `flush` stores them and waits, and
`is_ending` tells whether to save a checkpoint and return, because a replica must end soon.

This import path is public. The package `kfp_distributed.trainers` does not import the client of the object store.
"""

from kfp_distributed.trainers.runtime.checkpoints.folder_uploads import flush
from kfp_distributed.trainers.runtime.lifecycle.termination import is_ending
from kfp_distributed.trainers.runtime.outputs.epoch_metrics import record_epoch

__all__ = ["flush", "is_ending", "record_epoch"]
