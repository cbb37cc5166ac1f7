"""Train by the Kubeflow SDK: `python sdk_trainer.py NAMESPACE IMAGE SECONDS ERROR`, in the environment of the SDK.

The program trains for SECONDS on two nodes and then raises ERROR, if it is not "". It prints "job NAME TIME" when the
TrainJob is created, and "end TIME TEXT" when `wait_for_job_status` returns or raises, with the text of its exception
(`time.monotonic`). Then it deletes the job.
"""

import sys
import time

from kubeflow.trainer import CustomTrainer, KubernetesBackendConfig, TrainerClient


def fit(seconds: float, error: str) -> None:
    """Train, or fail."""
    import time

    time.sleep(seconds)
    if error:
        raise RuntimeError(error)


namespace, image, seconds, error = sys.argv[1:]
trainer = TrainerClient(backend_config=KubernetesBackendConfig(namespace=namespace))
runtime = trainer.get_runtime("torch-distributed")
print("ready", flush=True)
input()
started = time.monotonic()
arguments = {"seconds": float(seconds), "error": error}
custom = CustomTrainer(func=fit, func_args=arguments, image=image, num_nodes=2)
name = trainer.train(runtime=runtime, trainer=custom)
print(f"job {name} {started:.6f}", flush=True)
text = ""
try:
    trainer.wait_for_job_status(name)
except Exception as failure:  # noqa: BLE001 - the benchmark shows what it says
    text = repr(failure)
print(f"end {time.monotonic():.6f} {text}", flush=True)
trainer.delete_job(name)
