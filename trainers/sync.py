"""Functions for training functions.

`record_epoch` stores the metrics and the checkpoint of an epoch in the background, `record_step` the metrics of a step,
`flush` stores all and waits, and `is_ending` tells whether to save a checkpoint and return, because a replica must end
soon. A signal handler must not call the first three, which take locks: let it set a flag that the training looks at.

This import path is public. The package `kfp_distributed.trainers` does not import the client of the object store.
"""

from kfp_distributed.trainers.runtime.checkpoints import folder_uploads
from kfp_distributed.trainers.runtime.lifecycle.termination import is_ending
from kfp_distributed.trainers.runtime.outputs.epoch_metrics import record_epoch
from kfp_distributed.trainers.runtime.outputs.step_metrics import record_step


def flush() -> bool:
    """Store the current checkpoint and metrics in object storage, and return when they are there.

    If they cannot be stored, the log has the reason, and the next call tries again. An older checkpoint that is being
    uploaded is given up.

    Returns:
        Whether the object store has answered all requests. A refusal and a full disk do not pass by themselves, so
        they are not worth waiting for.
    """
    return folder_uploads.flush()


__all__ = ["flush", "is_ending", "record_epoch", "record_step"]
