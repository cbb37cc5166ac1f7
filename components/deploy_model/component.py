"""The step `deploy_model` as Kubeflow Pipelines sees it."""

from typing import NamedTuple

from kfp import dsl


def deploy_model(
    name: str,
    model_uri: str,
    deployment: dsl.Output[dsl.Artifact],
    namespace: str = "",
    service_account: str = "",
    cpus: str = "",
    memory: str = "",
    gpus: int = 0,
    min_replicas: int = 1,
    max_replicas: int = 0,
    canary_percent: int = 100,
    timeout_minutes: int = 15,
    runner: str = "auto",
) -> NamedTuple("Deployed", [("url", str), ("version", int)]):  # type: ignore[valid-type]
    """Serves an exported version with KServe, or on this machine in a local run, and waits until it is ready.

    Creates an InferenceService, or changes the one that an earlier deployment has created. Exactly this version is
    served. If it does not become ready, the step fails with the reason, and the previous version serves again; a first
    deployment is deleted. KFP never takes the outputs of this step from its cache. Needs KServe 0.11 or later, and 0.13
    or later for a language model, which must be complete, and is served over OpenAI's interface by KServe's huggingface
    runtime.

    Args:
        name: Name of the InferenceService: at most 53 characters out of a-z, 0-9 and "-". Example: "digits".
        model_uri: Address of the version, the output `uri` of `export_model`, or of an alias. Examples:
            "s3://models/digits/3", "s3://models/digits@production".
        namespace: Namespace of the InferenceService. Example: "serving". Default: empty, which means that of the step.
        service_account: ServiceAccount of the model server. It lists the Secret with the keys of the object store.
            Example: "models". Default: empty, which means that of the namespace.
        cpus: CPUs of each replica. Examples: "2", "500m". Default: empty, which means those of the serving runtime.
        memory: Memory of each replica. Example: "4Gi". Default: empty, which means that of the serving runtime.
        gpus: Number of NVIDIA GPUs of each replica. Default: 0.
        min_replicas: Minimum number of replicas. 0 needs KServe's mode Knative. Default: 1.
        max_replicas: Maximum number of replicas. Default: 0, which means KServe's default.
        canary_percent: Percentage of the requests that the new version gets, from 1 to 100; the previous version gets
            the others. Less than 100 needs KServe's mode Knative. Default: 100.
        timeout_minutes: Minutes until the version must be ready, from 1 to 1440. Default: 15.
        runner: Where the model is served. Allowed values: "kubernetes" (with KServe), "local" (by a process of
            `local_run` until it ends; of the settings only `name` and `timeout_minutes` count) and "auto" (with KServe
            where there is a cluster, else by a process). Default: "auto".

    Returns:
        deployment: JSON file with the name, the namespace, the address, the version, the format, the mode ("Standard"
            and "Knative" of KServe, or "local") and the percentage.
        url: Address of the model server, on a cluster within it. Examples: "http://digits-predictor.team",
            "http://127.0.0.1:41523".
        version: Number of the version that is served.

    Raises:
        SystemExit: The version is not deployed. The message is the last line of the step's log, because KFP shows an
            error nowhere else.
    """
    parameters = dict(locals())
    from kfp_distributed.components.deploy_model.step import run_step

    return run_step(**parameters)
