"""Which runner a `train` step asks for."""

from kfp_distributed.components.train.runners.local import LocalRunner
from kfp_distributed.components.train.runners.protocol import Runner


def choose_runner(name: str) -> Runner:
    """Returns the runner that a `train` step asks for.

    Args:
        name: "local" or "auto".

    Raises:
        ValueError: There is no such runner, or not here.
    """
    if name not in ("auto", "local"):
        raise ValueError(f"runner = {name!r} is not one of auto, local: all replicas are processes of the train step")
    return LocalRunner()
