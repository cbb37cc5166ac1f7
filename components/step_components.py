"""Create the five steps as KFP components, with the packages that each needs."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kfp_distributed.components.delivery import Delivery
from kfp_distributed.components.evaluate.component import evaluate
from kfp_distributed.components.export_model.component import export_model
from kfp_distributed.components.fingerprint_source.component import fingerprint_source
from kfp_distributed.components.packaging import make_step
from kfp_distributed.components.prepare_data.component import prepare_data
from kfp_distributed.components.train.component import train
from kfp_distributed.trainers.requirements import STORE, TENSORFLOW, replica_images

_ARROW = ("numpy>=1.26,<3", "pyarrow>=19,<27")

# Dependencies of kfp, which steps install without dependencies. Steps use them to find the object store and to watch
# the job.
_KUBERNETES = ("kubernetes>=29,<37", "PyYAML>=6,<7")

_REPORTS = ("bokeh>=3.9,<4", "Jinja2>=3.1,<4")

PACKAGES = {
    "prepare_data": (*_ARROW, *_KUBERNETES, *STORE, *_REPORTS, "pillow>=10.3,<14"),
    # Replicas install their own packages.
    "train": ("numpy>=1.26,<3", *_KUBERNETES, *STORE, *_REPORTS),
    "evaluate": (
        *TENSORFLOW,
        "onnx>=1.16,<2",
        "onnxruntime>=1.20,<2",
        "scikit-learn>=1.4,<2",
        *_ARROW,
        *STORE,
        *_REPORTS,
    ),
    "export_model": (*_KUBERNETES, *STORE),
    "fingerprint_source": (*_KUBERNETES, *STORE),
}
"""Requirements of each step. pip installs them in a stock image, and images/steps and images/evaluate have them."""


class Steps(NamedTuple):
    """The five steps. Each is a component to call in a `@dsl.pipeline` function."""

    prepare_data: Any
    train: Any
    evaluate: Any
    export_model: Any
    fingerprint_source: Any


def steps(
    delivery: Delivery | None = None,
    *,
    task_config: bool = False,
    replicas_image: str = "",
    replicas_images: Mapping[str, str] | None = None,
) -> Steps:
    """Create the five steps for a delivery of the library.

    Args:
        delivery: How the steps find the library. Default: `Delivery.namespace()`.
        task_config: Whether settings of the KFP task `train` (its `TaskConfig`) are applied to the pods of its job.
            Keys of `distribution_specification` take precedence. Requires a backend of KFP 2.15. Default: False.
        replicas_image: Image of replicas whose `train_specification` names none. Default: "", which means that of the
            step's environment, else a stock Python image.
        replicas_images: The same by kind: "tensorflow", "horovod", "pytorch" or "horovod-pytorch". Takes precedence.

    Raises:
        ValueError: A kind or the name of an image is not valid.
    """
    delivery = delivery or Delivery.namespace()
    variables = replica_images(replicas_image, replicas_images)
    functions: dict[str, Callable[..., Any]] = {
        "prepare_data": prepare_data,
        "train": train,
        "evaluate": evaluate,
        "export_model": export_model,
        "fingerprint_source": fingerprint_source,
    }
    return Steps(
        **{
            name: make_step(
                function,
                image=delivery.evaluate_image if name == "evaluate" else delivery.steps_image,
                packages=PACKAGES[name],
                library=delivery.requirement,
                task_config=task_config and name == "train",
                # Its inputs stay the same when the source changes.
                cached=name != "fingerprint_source",
                variables=variables if name == "train" else {},
            )
            for name, function in functions.items()
        }
    )
