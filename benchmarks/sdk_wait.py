"""Wait for a TFJob by the public SDK: `python sdk_wait.py NAMESPACE SECONDS`, in the environment of the SDK.

The program reads the name of the job from its input, polls the job with an interval of SECONDS, and prints the time at
which it saw the end (`time.monotonic`).
"""

import sys
import time

from kubeflow.training import TrainingClient

training = TrainingClient(namespace=sys.argv[1], job_kind="TFJob")
print("ready", flush=True)
training.wait_for_job_conditions(input(), polling_interval=int(sys.argv[2]))
print(f"{time.monotonic():.6f}")
