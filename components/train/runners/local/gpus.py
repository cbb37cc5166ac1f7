"""The GPUs of this machine, and which of them a replica sees."""

import os
from collections.abc import Sequence
from pathlib import Path

from kfp_distributed.components.train.topology import Topology


def visible_gpus(topology: Topology, name: str, here: Sequence[str]) -> dict[str, str]:
    """The setting that shows a replica those of a machine's GPUs that are its own, as a cluster would.

    NCCL refuses two ranks on one, and TensorFlow takes all memory of each that it sees. Where there are fewer than are
    asked for, no replica sees any: all train without. The launcher of MPI sees those of its ranks, which divide them by
    themselves. Of a single process nothing is said.

    Args:
        topology: The job's.
        name: The replica's.
        here: The machine's GPUs, as CUDA_VISIBLE_DEVICES has them.
    """
    counts = [each.resources.gpus for each in topology.replicas]
    if len(counts) == 1:
        return {}
    place = [each.name for each in topology.replicas].index(name)
    first = sum(counts[:place])
    stop = sum(counts) if topology.distribution_type == "MPI" else first + counts[place]
    own = here[first:stop] if sum(counts) <= len(here) else ()
    return {"CUDA_VISIBLE_DEVICES": ",".join(own)}


def machine_gpus() -> list[str]:
    """Returns the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [gpu for gpu in visible.split(",") if gpu]
    return [device.name.removeprefix("nvidia") for device in sorted(Path("/dev").glob("nvidia[0-9]*"))]
