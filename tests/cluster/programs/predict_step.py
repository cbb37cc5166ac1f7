"""A step predict as a process: reads its parameters as JSON from stdin and prints the log of the step.

Each line has the time in seconds, [REPLICA] and the message. The last line is VERDICT and JSON: {"error", "rows"}.
"""

import json
import sys
import time
from types import SimpleNamespace

from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.components.predict.prediction_pods.prediction_job import (
    PredictionJobRequest,
    predict_in_pods,
    prediction_folder,
)
from kfp_distributed.components.train.run.runners.runner_choice import kubernetes_runner
from kfp_distributed.components.train.run.shown_progress.log_entry import JOB, LogEntry
from kfp_distributed.components.train.tell.step_log import StepLog
from kfp_distributed.components.worker_pool.worker_job import parse_worker_settings
from kfp_distributed.components.worker_pool.worker_run import WorkersFailed
from kfp_distributed.library.content import STEP_PACKAGES


def show(entry: LogEntry) -> None:
    line = entry.message if entry.replica == JOB else f"[{entry.replica}] {entry.message}"
    print(f"{time.time():.3f} {line}", flush=True)


fields = json.load(sys.stdin)
request = PredictionJobRequest(
    workers=fields["workers"],
    folder=prediction_folder(fields["predictions"]),
    model_uri=fields["model_uri"],
    is_artifact=False,
    dataset_uri="",
    parameters=fields["parameters"],
)
log = StepLog(show)
verdict = {"error": "", "rows": 0}
output = SimpleNamespace(path=fields["path"], uri=fields["predictions"], metadata={})
try:
    runner = kubernetes_runner(connect(fields["namespace"]), output.uri, log.log, packages=STEP_PACKAGES)
    verdict["rows"] = predict_in_pods(request, parse_worker_settings(fields["settings"]), runner, output, log)
except (WorkersFailed, ValueError, OSError) as error:
    verdict["error"] = str(error)
print(f"{time.time():.3f} VERDICT {json.dumps(verdict)}", flush=True)
