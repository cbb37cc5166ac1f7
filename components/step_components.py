"""Create the ten steps as KFP components, with the packages that each needs."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kfp_distributed.components.deploy_model.component import deploy_model
from kfp_distributed.components.evaluate.component import evaluate
from kfp_distributed.components.evaluate_language_model.component import evaluate_language_model
from kfp_distributed.components.export_model.component import export_model
from kfp_distributed.components.fingerprint_source.component import fingerprint_source
from kfp_distributed.components.import_model.component import import_model
from kfp_distributed.components.kfp_interface.delivery import IMAGE_VARIABLE, Delivery
from kfp_distributed.components.kfp_interface.packaging import make_step
from kfp_distributed.components.kfp_interface.step_packages import PACKAGES
from kfp_distributed.components.predict.component import predict
from kfp_distributed.components.prepare_data.component import prepare_data
from kfp_distributed.components.train.component import train
from kfp_distributed.components.tune.component import tune
from kfp_distributed.trainers.programs.requirements import replica_images

_RUN_MODELS = ("evaluate", "predict")
"""Steps that run models, and need TensorFlow and ONNX Runtime."""

_START_JOBS = ("train", "evaluate_language_model", "tune")
"""Steps that start the replicas of a job."""

_NEVER_CACHED = ("fingerprint_source", "deploy_model", "import_model")
"""Steps whose inputs stay the same when the source changes, another version is deployed, or the target is deleted."""


class Steps(NamedTuple):
    """The ten steps. Each is a component to call in a `@dsl.pipeline` function."""

    prepare_data: Any
    train: Any
    evaluate: Any
    export_model: Any
    fingerprint_source: Any
    predict: Any
    deploy_model: Any
    import_model: Any
    evaluate_language_model: Any
    tune: Any


def steps(
    delivery: Delivery | None = None,
    *,
    task_config: bool = False,
    replicas_image: str = "",
    replicas_images: Mapping[str, str] | None = None,
) -> Steps:
    """Create the ten steps for a delivery of the library.

    Args:
        delivery: How the steps find the library. Default: `Delivery.namespace()`.
        task_config: Whether settings of the KFP task of `train`, `evaluate_language_model` or `tune` (its
            `TaskConfig`) are applied to the pods of its jobs. Keys of `distribution_specification` take precedence.
            Requires a backend of KFP 2.15. Default: False.
        replicas_image: Image of replicas whose `train_specification` names none. Default: "", which means that of the
            step's environment, else a stock Python image.
        replicas_images: The same by kind: "tensorflow", "horovod", "pytorch", "horovod-pytorch" or "language-model".
            Takes precedence.

    Raises:
        ValueError: A kind or the name of an image is not valid.
    """
    delivery = delivery or Delivery.namespace()
    of_replicas = replica_images(replicas_image, replicas_images)
    variables = {
        **dict.fromkeys(_START_JOBS, of_replicas),
        # The pods of their jobs run in the image of the step.
        "prepare_data": {IMAGE_VARIABLE: delivery.steps_image} if delivery.steps_image else {},
        "predict": {IMAGE_VARIABLE: delivery.evaluate_image} if delivery.evaluate_image else {},
    }
    functions: dict[str, Callable[..., Any]] = {
        "prepare_data": prepare_data,
        "train": train,
        "evaluate": evaluate,
        "export_model": export_model,
        "fingerprint_source": fingerprint_source,
        "predict": predict,
        "deploy_model": deploy_model,
        "import_model": import_model,
        "evaluate_language_model": evaluate_language_model,
        "tune": tune,
    }
    return Steps(
        **{
            name: make_step(
                function,
                image=delivery.evaluate_image if name in _RUN_MODELS else delivery.steps_image,
                packages=PACKAGES[name],
                library=delivery.requirement,
                task_config=task_config and name in _START_JOBS,
                cached=name not in _NEVER_CACHED,
                variables=variables.get(name, {}),
            )
            for name, function in functions.items()
        }
    )
