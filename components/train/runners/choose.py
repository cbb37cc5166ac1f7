"""Which runner a `train` step asks for."""

from collections.abc import Mapping

from kfp_distributed.components.train.runners.local import LocalRunner
from kfp_distributed.components.train.runners.protocol import Runner


def choose_runner(name: str, environment: Mapping[str, str]) -> Runner:
    """Returns the runner that a `train` step asks for.

    Args:
        name: "local" or "auto".
        environment: The step's environment variables; they tell whether it runs in a pod.

    Raises:
        ValueError: There is no such runner, or not here.
    """
    advice = "set it to local: then all replicas are processes of the train step"
    if name not in ("auto", "local"):
        raise ValueError(f"runner = {name!r} is not one of auto, local; {advice}")
    if name == "auto" and "KUBERNETES_SERVICE_HOST" in environment:
        raise ValueError(f"runner = 'auto' in a pod means a job of the cluster, which this version cannot do; {advice}")
    return LocalRunner()
