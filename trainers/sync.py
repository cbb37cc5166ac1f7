"""What a user's function may call while it trains: store its checkpoints at once, and record its epochs.

The import path is public. `kfp_distributed.trainers` itself stays light, without the client of the object store.
"""

from kfp_distributed.trainers.runtime.sync import flush, record_epoch

__all__ = ["flush", "record_epoch"]
