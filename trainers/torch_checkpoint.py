"""Sharded checkpoints of PyTorch, for models that are divided among ranks (FSDP, tensor parallelism, DTensor).

Each rank stores only its part of the model and the optimizer, and any number of ranks can load them. Every rank of the
job must call these functions, in the same order. They need PyTorch 2.3. This import path is public.

    from kfp_distributed.trainers.torch_checkpoint import load_sharded, save_sharded

    state = {"model": model, "optimizer": optimizer}
    first_step = (load_sharded(state) or 0) + 1
    for step in range(first_step, steps + 1):
        train_step()
        if step % 100 == 0:
            save_sharded(state, step)
"""

import re
from collections.abc import Mapping

import torch

_OLDEST = (2, 3)
"""Version of PyTorch from which torch.distributed.checkpoint has the functions that are used here."""

__all__ = ["is_ending", "load_sharded", "save_sharded"]


def save_sharded(state: Mapping[str, object], step: int, *, wait: bool = False) -> bool:
    """Save a checkpoint, of which each rank stores its part in object storage in the background.

    This returns when the tensors of this rank are in files on its local disk, whether or not the object store answers.
    The checkpoint is complete when all ranks have stored their part. If one of them ends before that, the previous
    checkpoint remains the newest. If the store is slower than the training, a checkpoint that waits is replaced by the
    next one, in all ranks. The local disk needs space for two parts of this rank.

    If a local disk is full, nothing is saved in any rank, and the log has the reason.
    If a rank cannot store its part later, all ranks give up this checkpoint, and the next one is uploaded.

    Args:
        state: Objects by name: modules, their optimizers, tensors, and objects with state_dict() and load_state_dict().
        step: Number of the step after which it is saved. If the newest checkpoint is of this step, nothing is saved.
        wait: Whether to return only when this rank has stored its part and, in rank 0, when the checkpoint is complete.
            It returns after ten minutes without progress in any case. Default: false.

    Returns:
        Whether this rank has saved its part. It is the same in all ranks. False outside of a job.

    Raises:
        ImportError: PyTorch is older than 2.3.
        ValueError: An object cannot be saved.
    """
    _require_torch("save_sharded")
    from kfp_distributed.trainers.torch_training import torch_sharding

    return torch_sharding.save(state, step, wait)


def load_sharded(state: Mapping[str, object]) -> int | None:
    """Load the newest complete checkpoint, of which each rank reads only what it needs.

    A checkpoint that is damaged, or after whose load a program failed at once, is skipped.

    Args:
        state: Objects by name, as of `save_sharded`, which are changed in place. The ranks may be more or fewer than
            those that have saved the checkpoint.

    Returns:
        The step of the checkpoint; None if there is none. None outside of a job.

    Raises:
        ImportError: PyTorch is older than 2.3.
        NoUsableCheckpoint: There are complete checkpoints, but none is usable.
        StorageError: The object store cannot be read.
        ValueError: The checkpoint is of other objects.
    """
    _require_torch("load_sharded")
    from kfp_distributed.trainers.torch_training import torch_sharding

    return torch_sharding.load(state)


def is_ending() -> bool:
    """Return in all ranks whether the program should save a checkpoint and return now, because a replica must end soon.

    It is `is_ending` of `kfp_distributed.trainers.sync`, which is true in the leader alone, for all ranks. Ask after
    each step, call `save_sharded`, and return. All replicas are restarted then.
    """
    _require_torch("is_ending")
    from kfp_distributed.trainers.torch_training import torch_sharding

    return torch_sharding.is_ending()


def _require_torch(name: str) -> None:
    version = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
    if version < _OLDEST:
        raise ImportError(
            f"{name}() needs PyTorch 2.3 or newer, and this is {torch.__version__}: use an image with a newer PyTorch, "
            "or save the state to checkpoint_dir in rank 0 and call flush() of kfp_distributed.trainers.sync"
        )
