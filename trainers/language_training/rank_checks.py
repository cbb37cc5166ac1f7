"""Checks of the GPUs of a replica and of the network between the ranks, before a large model is loaded."""

import os
from collections.abc import Mapping
from datetime import timedelta
from importlib.util import find_spec

import torch
import torch.distributed as dist

from kfp_distributed.trainers.runtime.job_description import GPUS_VARIABLE

SECONDS = 60.0
"""Time for which a rank waits for the others in `check_ranks`. With a network that works it takes a second. It does not
limit how long PyTorch takes to connect the ranks: up to 30 minutes, because their pods start at different times.
"""


def check_gpus(environment: Mapping[str, str] = os.environ) -> None:
    """Check that PyTorch finds the GPUs of the replica, and one for each of its ranks.

    Args:
        environment: Environment variables.

    Raises:
        ValueError: It does not.
    """
    found, needed = torch.cuda.device_count(), int(environment.get(GPUS_VARIABLE) or 0)
    ranks = int(environment.get("LOCAL_WORLD_SIZE") or 1)
    if found < needed:
        platforms = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
        built = next((f"for {name} {version}" for name, version in platforms.items() if version), "without CUDA")
        advice = (
            f"parts of a GPU, such as gpu_resource of MIG, are one GPU for a process: set worker_gpus to {found}"
            if found
            else f"PyTorch {torch.__version__} of the image is built {built}: use an image for the GPUs of the node, "
            "of a version that its driver supports (nvidia-smi shows that of CUDA)"
        )
        raise ValueError(f"worker_gpus is {needed}, but PyTorch finds {found} GPUs; {advice}")
    if 0 < found < ranks:
        raise ValueError(
            f"slots_per_worker is {ranks}, but PyTorch finds {found} GPUs, and each rank needs one: set worker_gpus to "
            f"{ranks}"
        )
    if found > ranks:
        print(f"{found - ranks} of {found} GPUs are not used, because each rank uses one", flush=True)


def check_quantization() -> None:
    """Check that a model can be quantized to 4 bits.

    Raises:
        ValueError: There is no GPU with CUDA, or no bitsandbytes.
    """
    if not torch.cuda.is_available():
        raise ValueError('method is "qlora", which needs a GPU with CUDA, and PyTorch finds none: set method to "lora"')
    if not find_spec("bitsandbytes"):
        raise ValueError(
            'method is "qlora", which needs bitsandbytes, and the image has none: use the image language-model, or set '
            'method to "lora"'
        )


def check_ranks(device: torch.device, seconds: float = SECONDS) -> None:
    """Check that all ranks answer each other, if there are several, once they are connected.

    Args:
        device: Device of this rank.
        seconds: Time to wait for them. Default: 60.

    Raises:
        RuntimeError: They do not.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    ranks = torch.ones(1, device=device)
    try:
        dist.all_reduce(ranks, async_op=True).wait(timedelta(seconds=seconds))
        answered = int(ranks.item())
    except RuntimeError as error:
        raise type(error)(  # The class may say that a peer is lost.
            f"rank {dist.get_rank()} of {dist.get_world_size()} had no answer of all others within {seconds:g} s over "
            f"{dist.get_backend()}: network policies must let the pods of the job reach each other on all ports, "
            f"and NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names the network if a pod has several. {error}"
        ) from None
    assert answered == dist.get_world_size(), f"{answered} ranks answered"
