"""GPUs of this machine, and their assignment to replicas."""

import os
from collections.abc import Sequence
from pathlib import Path

from kfp_distributed.components.train.describe.topology import Topology
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.trainers.programs.program import LANGUAGE_MODEL


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


def check_gpus(job: TrainingJob, available: int) -> None:
    """Check that a training with 4 bits has GPUs. All others run on CPUs, too.

    Args:
        job: The job.
        available: Number of GPUs of this machine.

    Raises:
        ValueError: It has none.
    """
    requested = sum(replica.resources.gpus for replica in job.topology.replicas)
    description = job.description
    is_quantized = description.parameters.get("method") == "qlora" and description.program.get("trainer")
    if is_quantized and requested > available:
        raise ValueError(
            f'train_parameters of {LANGUAGE_MODEL}: method is "qlora", which needs {requested} GPUs with CUDA, and '
            f'this machine has {available} (devices /dev/nvidia*, or CUDA_VISIBLE_DEVICES): set method to "lora", or '
            "run the step on a cluster with GPUs"
        )


def machine_gpus() -> list[str]:
    """Return the GPUs that this process may use, in the form of CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [gpu for gpu in visible.split(",") if gpu]
    return [device.name.removeprefix("nvidia") for device in sorted(Path("/dev").glob("nvidia[0-9]*"))]
