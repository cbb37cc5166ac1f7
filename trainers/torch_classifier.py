"""The trainer `torch_classifier`: a PyTorch network trained with DistributedDataParallel."""

import os
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from kfp_distributed.trainers.programs.training_parameters import TrainingParameters
from kfp_distributed.trainers.runtime.workarounds.torch_internals import never_destroy
from kfp_distributed.trainers.torch_training.torch_fit import Folders, Ranks, train_network
from kfp_distributed.trainers.torch_training.torch_resume import load_checkpoint

_LONGEST_WAIT = timedelta(minutes=5)
"""Timeout of one collective operation. Rank 0 may spend four minutes of it on storing a checkpoint while the object
store does not answer. Gloo's default is half an hour, which it would also wait for a lost machine, or for a peer whose
end it missed because the peer died during an exchange (one in fifty with Debian's PyTorch 1.13)."""


def torch_classifier(
    train_dir: str,
    validation_dir: str,
    model_dir: str,
    checkpoint_dir: str,
    metrics_dir: str,
    parameters: TrainingParameters,
) -> None:
    """Train a fully connected network and save it as ONNX.

    With RANK and WORLD_SIZE, several processes average their gradients, over NCCL if there are GPUs, else over Gloo.
    Without them, one process trains. The training continues after the last epoch that rank 0 has in checkpoint_dir.

    Args:
        train_dir: Folder with the manifest of the training dataset and the shards of this process.
        validation_dir: Folder of the validation dataset; "" for none.
        model_dir: Folder for model.onnx of rank 0.
        checkpoint_dir: Folder for the checkpoints of rank 0, one after each epoch.
        metrics_dir: Folder for training.json of rank 0.
        parameters: Its parameters.
    """
    device, group = _join()
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), device, partial(dist.all_reduce, group=group))
    checkpoint = [{} if ranks.rank else load_checkpoint(checkpoint_dir)]
    dist.broadcast_object_list(checkpoint, group=group)
    # The buffers never change.
    distributed = partial(DistributedDataParallel, process_group=group, broadcast_buffers=False)
    folders = Folders(train_dir, validation_dir, model_dir, checkpoint_dir, metrics_dir)
    train_network(folders, parameters, checkpoint[0], ranks, distributed)


def _join() -> tuple[torch.device, dist.ProcessGroup]:
    """Join the other ranks; return the device of this rank and the process group for its exchanges."""
    on_gpu, local_rank = torch.cuda.is_available(), int(os.environ.get("LOCAL_RANK", 0))
    if on_gpu:
        torch.cuda.set_device(local_rank)
    alone = {} if "WORLD_SIZE" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("nccl" if on_gpu else "gloo", **alone)
    # A separate group, because the default group has the longer timeout that the start of the other ranks may need.
    group = dist.new_group(timeout=_LONGEST_WAIT)
    for process_group in (dist.group.WORLD, group):
        never_destroy(process_group)
    return torch.device("cuda", local_rank) if on_gpu else torch.device("cpu"), group
