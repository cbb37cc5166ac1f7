"""The programs of the public SDKs, each run in the environment of its SDK: `python sdk_programs.py PROGRAM ARGUMENTS`.

A program that is timed prints "ready" after its imports, and then waits for a line of its input. Its times are those of
`time.monotonic`.
"""

import sys
import time


def follow(port: str, workers: str) -> None:
    """Create a TFJob on `StubApi`, follow the logs of its workers and wait for its end."""
    from kubeflow.training import TrainingClient
    from kubeflow.training.constants.constants import JOB_PARAMETERS
    from kubernetes import client

    stub, kind = client.Configuration(), "TFJob"
    stub.host = f"http://127.0.0.1:{port}"
    training = TrainingClient(client_configuration=stub, job_kind=kind, namespace="default")
    replicas = {"Worker": {"replicas": int(workers), "template": {"spec": {"containers": [{"name": "tensorflow"}]}}}}
    body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": kind,
        "metadata": {"name": "benchmark"},
        "spec": {"runPolicy": {}, "tfReplicaSpecs": replicas},
    }
    plural = JOB_PARAMETERS[kind]["plural"]
    training.custom_api.create_namespaced_custom_object("kubeflow.org", "v1", "default", plural, body)
    training.get_job_logs("benchmark", is_master=False, follow=True)
    training.wait_for_job_conditions("benchmark", job_kind=kind)


def wait(namespace: str, seconds: str) -> None:
    """Wait for the TFJob that the input names, polling it every so many seconds. Print when its end was seen."""
    from kubeflow.training import TrainingClient

    training = TrainingClient(namespace=namespace, job_kind="TFJob")
    print("ready", flush=True)
    training.wait_for_job_conditions(input(), polling_interval=int(seconds))
    print(f"{time.monotonic():.6f}")


def fit(seconds: float, error: str) -> None:
    """Train, or fail. The SDK sends this function to the nodes."""
    import time

    time.sleep(seconds)
    if error:
        raise RuntimeError(error)


def train(namespace: str, image: str, seconds: str, error: str) -> None:
    """Run `fit` on two nodes as a TrainJob.

    Prints "job NAME TIME" when the TrainJob is created, and "end TIME TEXT" when `wait_for_job_status` returns or
    raises, with the text of its exception. Then it deletes the job.
    """
    from kubeflow.trainer import CustomTrainer, KubernetesBackendConfig, TrainerClient

    client = TrainerClient(backend_config=KubernetesBackendConfig(namespace=namespace))
    runtime = client.get_runtime("torch-distributed")
    print("ready", flush=True)
    input()
    started = time.monotonic()
    arguments = {"seconds": float(seconds), "error": error}
    trainer = CustomTrainer(func=fit, func_args=arguments, image=image, num_nodes=2)
    name = client.train(runtime=runtime, trainer=trainer)
    print(f"job {name} {started:.6f}", flush=True)
    text = ""
    try:
        client.wait_for_job_status(name)
    except Exception as failure:  # noqa: BLE001 - the benchmark shows what it says
        text = repr(failure)
    print(f"end {time.monotonic():.6f} {text}", flush=True)
    client.delete_job(name)


if __name__ == "__main__":
    {"follow": follow, "wait": wait, "train": train}[sys.argv[1]](*sys.argv[2:])
