"""The trainer `torch_horovod`: a PyTorch network whose gradients Horovod averages over the ranks of an MPI job."""

import os
from functools import partial

import horovod.torch as hvd
import torch

from kfp_distributed.trainers.programs.training_parameters import TrainingParameters
from kfp_distributed.trainers.runtime.ranks.cluster import check_size
from kfp_distributed.trainers.torch_training.torch_fit import Folders, Ranks, train_network
from kfp_distributed.trainers.torch_training.torch_network import Network
from kfp_distributed.trainers.torch_training.torch_resume import load_checkpoint


def torch_horovod(
    train_dir: str,
    validation_dir: str,
    model_dir: str,
    checkpoint_dir: str,
    metrics_dir: str,
    parameters: TrainingParameters,
) -> None:
    """Train a fully connected network on all ranks together and save it as ONNX.

    Each rank computes the gradients of its own rows. Horovod averages them, and all ranks apply the average. Only rank
    0 writes checkpoints, metrics and the model. It broadcasts the restored checkpoint to the other ranks.

    Args:
        train_dir: Folder with the manifest of the training dataset and the shards of this rank.
        validation_dir: Folder of the validation dataset; "" for none.
        model_dir: Folder for model.onnx of rank 0.
        checkpoint_dir: Folder for the checkpoints of rank 0, one after each epoch.
        metrics_dir: Folder for training.json of rank 0.
        parameters: Its parameters.
    """
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    check_size(os.environ, size)
    device = _device()
    # All ranks get the checkpoint, so that all end for the same reason if it is refused.
    checkpoint = hvd.broadcast_object({} if rank else load_checkpoint(checkpoint_dir))
    ranks = Ranks(rank, size, device, partial(hvd.allreduce_, op=hvd.Sum))
    folders = Folders(train_dir, validation_dir, model_dir, checkpoint_dir, metrics_dir)
    train_network(folders, parameters, checkpoint, ranks, _with_weights_of_rank_0, _with_average_gradients)


def _with_average_gradients(network: Network, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    averaging: torch.optim.Optimizer = hvd.DistributedOptimizer(optimizer, network.named_parameters())
    return averaging


def _with_weights_of_rank_0(network: Network) -> Network:
    hvd.broadcast_parameters(network.state_dict(), 0)
    return network


def _device() -> torch.device:
    """Return the GPU of this rank, or the CPU. Each rank of a worker uses a GPU of its own."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
