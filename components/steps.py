"""The four steps as KFP components, and what each needs in its container."""

from typing import Any, NamedTuple

from kfp_distributed.components.evaluate.component import evaluate
from kfp_distributed.components.export_model.component import export_model
from kfp_distributed.components.packaging import Delivery, make_step
from kfp_distributed.components.prepare_data.component import prepare_data
from kfp_distributed.components.train.component import train
from kfp_distributed.trainers.program import TRAINERS
from kfp_distributed.trainers.requirements import STORE, TENSORFLOW, URLLIB3

# From this version on Arrow's S3 client takes certificates of one's own.
_ARROW = ["numpy>=1.26,<3", "pyarrow>=21,<27"]
# Read the Secret and the ConfigMap of a pod's object store. kfp depends on them, but a step installs kfp alone.
_KUBERNETES = ["kubernetes>=29,<37", "PyYAML>=6,<7"]
_STORE = [*STORE, *_KUBERNETES]

# What runs in the replicas is started by its name.
_ENTRY = ["kfp_distributed.trainers.runtime.entry"]
_TRAINERS = [f"kfp_distributed.trainers.{name}" for name in TRAINERS]

_LOCAL = ["kfp_distributed.components.train.runners.local.runner", "kfp_distributed.components.train.staging"]


class Steps(NamedTuple):
    """The four steps, each a component to call inside a `@dsl.pipeline` function."""

    prepare_data: Any
    train: Any
    evaluate: Any
    export_model: Any


def steps(*, image: str = "", package: str = "", local: bool = False, task_config: bool = False) -> Steps:
    """Makes the four steps for an image or a package of yours.

    Args:
        image: An image that has kfp-distributed and what its steps need; nothing is then installed at start.
        package: A requirement or the address of a wheel, installed by pip when a step starts.
        local: Whether `train` carries what runs replicas as processes beside it, too. It needs that on a cluster
            with runner="local", and where a YAML runs on a machine without kfp-distributed; under `local_run` it
            takes it from the installed package.
        task_config: Whether what is set on the task `train` reaches the pods of its job, where
            `distribution_specification` does not say otherwise. Takes a backend of KFP 2.15.

    Returns:
        The steps. With neither argument they carry their code in the compiled YAML.

    Raises:
        ValueError: Both are given.
    """
    delivery = Delivery(image=image, package=package)
    return Steps(
        make_step(
            prepare_data,
            packages=[*_ARROW, *_KUBERNETES, URLLIB3, "pillow>=10.3,<14", "scikit-learn>=1.4,<2"],
            delivery=delivery,
        ),
        make_step(
            train,
            # What the replicas need is installed where they run.
            packages=["numpy>=1.26,<3", *_STORE],
            delivery=delivery,
            started_by_name=[*_ENTRY, *(_LOCAL if local else ())],
            trainers=_TRAINERS,
            task_config=task_config,
        ),
        make_step(
            evaluate, packages=[*TENSORFLOW, "onnx>=1.16,<2", "onnxruntime>=1.20,<2", *_ARROW], delivery=delivery
        ),
        make_step(export_model, packages=_STORE, delivery=delivery),
    )
