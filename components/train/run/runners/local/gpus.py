"""GPUs of this machine, and their assignment to replicas."""

import os
import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from kfp_distributed.components.train.describe.topology import Topology


def visible_gpus(topology: Topology, name: str, available: Sequence[str]) -> dict[str, str]:
    """Return the environment variable that limits a replica to its own GPUs, as on a cluster.

    NCCL refuses two ranks on one GPU, and TensorFlow allocates all memory of every visible GPU. If the machine has
    fewer GPUs than requested, no replica sees a GPU. The launcher of MPI sees the GPUs of all ranks, which divide them
    among themselves. A job with a single process sees all GPUs.

    Args:
        topology: Topology of the job.
        name: Name of the replica.
        available: GPUs of this machine, in the form of CUDA_VISIBLE_DEVICES.
    """
    counts = [replica.resources.gpus for replica in topology.replicas]
    if len(counts) == 1:
        return {}
    position = [replica.name for replica in topology.replicas].index(name)
    first = sum(counts[:position])
    stop = sum(counts) if topology.distribution_type == "MPI" else first + counts[position]
    own = available[first:stop] if sum(counts) <= len(available) else ()
    return {"CUDA_VISIBLE_DEVICES": ",".join(own)}


def machine_gpus() -> list[str]:
    """Return the GPUs that this process may use, in the form of CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        # CUDA sees none from the first that is not valid, such as -1, or NoDevFiles of Slurm, and none if one is twice.
        gpus = [*takewhile(re.compile(r"\d+|GPU-.+|MIG-.+").fullmatch, map(str.strip, visible.split(",")))]
        return gpus if len({*gpus}) == len(gpus) else []
    return [device.name.removeprefix("nvidia") for device in sorted(Path("/dev").glob("nvidia[0-9]*"))]
