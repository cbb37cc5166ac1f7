"""The pipeline `train_and_deploy`: does what `train_and_export` does, and serves the exported version."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from kfp import dsl

from kfp_distributed import components
from kfp_distributed.components import Steps
from kfp_distributed.components.kfp_interface.input_values import accept_input_values
from kfp_distributed.pipelines.train_and_export import export_function, training_function


def make_train_and_deploy(with_steps: Steps):  # type: ignore[no-untyped-def]  # noqa: ANN201  (kfp types no pipeline)
    """Return the pipeline of six steps, which may find the library in an image, a package or a ConfigMap.

    Args:
        with_steps: Steps of `kfp_distributed.components.steps()`.

    Returns:
        The pipeline. Call it in another pipeline or in `local_run()`, or compile it.
    """
    # A separate pipeline, because kfp's local runner cannot compare the output of a task beside the condition.
    deploy_if_good_enough = dsl.pipeline(
        _with_deployment(lambda settings: export_function(with_steps, partial(_deploy, with_steps, settings))),
        name="deploy-if-good-enough",
    )
    function = _with_deployment(
        lambda settings: training_function(with_steps, partial(deploy_if_good_enough, **settings))
    )
    description = "Prepares data, trains distributed, evaluates, exports and deploys."
    return accept_input_values(dsl.pipeline(function, name="train-and-deploy", description=description))


def _deployment(
    service_name: str = "digits",
    namespace: str = "",
    service_account: str = "",
    server_cpus: str = "",
    server_memory: str = "",
    server_gpus: int = 0,
    min_replicas: int = 1,
    max_replicas: int = 0,
    canary_percent: int = 100,
    deployment_timeout_minutes: int = 15,
) -> None:
    """Describes the parameters of the deployment. It is never called.

    Args:
        service_name: Name of the InferenceService, at most 53 characters out of a-z, 0-9 and "-". Example: "flowers".
            Default: "digits".
        namespace: Namespace of the InferenceService. Example: "serving". Default: empty, which means that of the step.
        service_account: ServiceAccount of the model server, which lists the Secret with the keys of the object store.
            Example: "models". Default: empty, which means that of the namespace.
        server_cpus: CPUs of each replica of the server. Examples: "2", "500m". Default: empty, which means those of the
            serving runtime.
        server_memory: Memory of each replica of the server. Example: "4Gi". Default: empty, which means that of the
            serving runtime.
        server_gpus: Number of NVIDIA GPUs of each replica of the server. Default: 0.
        min_replicas: Minimum number of replicas of the server. 0 needs KServe's mode Knative. Default: 1.
        max_replicas: Maximum number of replicas of the server. Default: 0, which means KServe's default.
        canary_percent: Percentage of the requests that the new version gets. Less than 100 needs KServe's mode Knative.
            Default: 100.
        deployment_timeout_minutes: Minutes until the version must be ready, from 1 to 1440. Default: 15.
    """


def _with_deployment(make_function: Callable[[dict[str, Any]], Callable[..., Any]]) -> Callable[..., Any]:
    """Return the function of a pipeline that has the parameters of `_deployment` too, with their descriptions.

    Args:
        make_function: Returns the function of the pipeline for values of the parameters of `_deployment`.
    """
    first, more = make_function({}), inspect.signature(_deployment).parameters
    parameters = {**inspect.signature(first).parameters, **more}

    def function(*arguments: Any) -> Any:  # noqa: ANN401  (channels of kfp)
        values = dict(zip(parameters, arguments, strict=True))
        settings = {name: values.pop(name) for name in more}
        return make_function(settings)(**values)

    signature = inspect.signature(first).replace(parameters=list(parameters.values()))
    function.__signature__ = signature  # type: ignore[attr-defined]
    described, end, returned = (inspect.getdoc(first) or "").partition("\n\nReturns:")
    described_more = (inspect.getdoc(_deployment) or "").partition("Args:\n")[2]
    function.__doc__ = f"{described.rstrip()}\n{described_more}{end}{returned}"
    return function


def _deploy(with_steps: Steps, settings: dict[str, Any], uri: Any) -> None:  # noqa: ANN401  (a channel of kfp)
    with_steps.deploy_model(
        name=settings["service_name"],
        model_uri=uri,
        namespace=settings["namespace"],
        service_account=settings["service_account"],
        cpus=settings["server_cpus"],
        memory=settings["server_memory"],
        gpus=settings["server_gpus"],
        min_replicas=settings["min_replicas"],
        max_replicas=settings["max_replicas"],
        canary_percent=settings["canary_percent"],
        timeout_minutes=settings["deployment_timeout_minutes"],
    )


train_and_deploy = make_train_and_deploy(Steps(*(getattr(components, name) for name in Steps._fields)))
