"""A train step as a process: reads a request as JSON from stdin and prints the log of the step.

Each line has the time in seconds, [REPLICA] and the message.

The last line is VERDICT and JSON: {"succeeded", "cause", "metrics", "seconds"}. The seconds do not include imports.
"""

import json
import sys
import time

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.run.facts import Level
from kfp_distributed.components.train.run.launch import TrainingFailed, launch
from kfp_distributed.components.train.run.runners.runner_choice import kubernetes_runner
from kfp_distributed.components.train.run.shown_progress.log_entry import JOB, LogEntry
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.components.train.tell.records import Records
from kfp_distributed.components.train.tell.step_log import StepLog
from kfp_distributed.storage.errors import StorageError

start = time.monotonic()
fields = json.load(sys.stdin)
namespace, secret = fields.pop("namespace"), fields.pop("cluster_configuration_secret", "")
task_config = fields.pop("task_config", {})
request = Request(**{**fields, "identity": tuple(fields["identity"])})


def show(entry: LogEntry) -> None:
    line = entry.message if entry.replica == JOB else f"[{entry.replica}] {entry.message}"
    print(f"{time.time():.3f} {line}", flush=True)


def warn(level: Level, text: str) -> None:
    show(LogEntry(time.time(), level, JOB, text))


def begin(job: TrainingJob) -> None:
    records.start(job, runner.namespace, request.model_uri)


verdict = {"succeeded": False, "cause": "", "metrics": {}}
records, end = Records(warn), "KILLED"
log = StepLog(show, records.add)
try:
    runner = kubernetes_runner(connect(namespace), request.model_uri, log.log, secret, task_config)
    outcome = launch(request, runner, log, begin)
    verdict |= {"succeeded": True, "metrics": outcome.metrics}
    end = "FINISHED"
except TrainingFailed as failure:
    verdict |= {"cause": str(failure), "metrics": failure.metrics}
    end = "FAILED"
except (ValueError, ClusterError, StorageError) as error:
    verdict["cause"], end = f"refused: {error}", "FAILED"
finally:
    records.finish(end, verdict["cause"].rpartition("\n")[2])
verdict["seconds"] = time.monotonic() - start
print(f"{time.time():.3f} VERDICT {json.dumps(verdict)}", flush=True)
