"""Waits for a TFJob as the public SDK does, in an environment that has it: `python sdk_wait.py NAMESPACE SECONDS`.

It takes the job's name from its input, looks at the job every so many seconds, and prints when it saw the end
(`time.monotonic`).
"""

import sys
import time

from kubeflow.training import TrainingClient

training = TrainingClient(namespace=sys.argv[1], job_kind="TFJob")
print("ready", flush=True)
training.wait_for_job_conditions(input(), polling_interval=int(sys.argv[2]))
print(f"{time.monotonic():.6f}")
