"""The four steps as KFP components, and what each needs in its container."""

from collections.abc import Callable
from typing import Any, NamedTuple

from kfp_distributed.components.delivery import Delivery
from kfp_distributed.components.evaluate.component import evaluate
from kfp_distributed.components.export_model.component import export_model
from kfp_distributed.components.packaging import make_step
from kfp_distributed.components.prepare_data.component import prepare_data
from kfp_distributed.components.train.component import train
from kfp_distributed.trainers.requirements import STORE, TENSORFLOW

_ARROW = ("numpy>=1.26,<3", "pyarrow>=19,<27")

# kfp depends on both, but a step installs kfp alone. They find the object store of a pod and follow its job.
_KUBERNETES = ("kubernetes>=29,<37", "PyYAML>=6,<7")

_REPORTS = ("bokeh>=3.9,<4", "Jinja2>=3.1,<4")

PACKAGES = {
    "prepare_data": (*_ARROW, *_KUBERNETES, *STORE, *_REPORTS, "pillow>=10.3,<14"),
    # The replicas install what they need themselves.
    "train": ("numpy>=1.26,<3", *_KUBERNETES, *STORE, *_REPORTS),
    "evaluate": (*TENSORFLOW, "onnx>=1.16,<2", "onnxruntime>=1.20,<2", *_ARROW, *STORE, *_REPORTS),
    "export_model": (*_KUBERNETES, *STORE),
}
"""What pip installs into a stock image before a step starts, and what images/ have, by the step's name."""


class Steps(NamedTuple):
    """The four steps, each a component to call inside a `@dsl.pipeline` function."""

    prepare_data: Any
    train: Any
    evaluate: Any
    export_model: Any


def steps(delivery: Delivery | None = None, *, task_config: bool = False) -> Steps:
    """Make the four steps for a delivery of the library.

    Args:
        delivery: Where the steps find the library; by default `Delivery.namespace()`.
        task_config: Whether what is set on the task `train` reaches the pods of its job, where
            `distribution_specification` does not say otherwise. Requires a backend of KFP 2.15.
    """
    delivery = delivery or Delivery.namespace()
    functions: dict[str, Callable[..., Any]] = {
        "prepare_data": prepare_data,
        "train": train,
        "evaluate": evaluate,
        "export_model": export_model,
    }
    return Steps(
        **{
            name: make_step(
                function,
                image=delivery.evaluate_image if name == "evaluate" else delivery.steps_image,
                packages=PACKAGES[name],
                library=delivery.requirement,
                task_config=task_config and name == "train",
            )
            for name, function in functions.items()
        }
    )
