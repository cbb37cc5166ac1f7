"""Functions that a training function may call: `flush` stores its checkpoints at once, `record_epoch` its metrics.

The import path is public. `kfp_distributed.trainers` itself stays light, without the client of the object store.
"""

from kfp_distributed.trainers.runtime.sync import flush, record_epoch

__all__ = ["flush", "record_epoch"]
