"""A step prepare_data as a process: reads its parameters as JSON from stdin and prints the log of the step.

Each line has the time in seconds, [REPLICA] and the message. The last line is VERDICT and JSON: {"error", "rows"}.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.components.prepare_data.preparation_pods.preparation_request import (
    PreparationRequest,
    preparation_folder,
)
from kfp_distributed.components.prepare_data.preparation_pods.preparation_run import prepare_in_pods
from kfp_distributed.components.train.run.runners.runner_choice import kubernetes_runner
from kfp_distributed.components.train.run.shown_progress.log_entry import JOB, LogEntry
from kfp_distributed.components.train.tell.step_log import StepLog
from kfp_distributed.components.worker_pool.worker_job import parse_worker_settings
from kfp_distributed.components.worker_pool.worker_run import WorkersFailed
from kfp_distributed.library.content import STEP_PACKAGES

SPLITS = ("train", "validation", "test")
PARAMETERS = {
    "label_column": "label",
    "validation_fraction": 0.1,
    "test_fraction": 0.1,
    "shards": 8,
    "seed": 0,
    "image_size": "",
    "drop_columns": [],
}


def show(entry: LogEntry) -> None:
    line = entry.message if entry.replica == JOB else f"[{entry.replica}] {entry.message}"
    print(f"{time.time():.3f} {line}", flush=True)


fields = json.load(sys.stdin)
uris = {split: f"{fields['folder']}/{split}_dataset" for split in SPLITS}
request = PreparationRequest(
    source=fields["source"],
    sources_of_splits={},
    parameters=PARAMETERS,
    like="",
    source_fingerprint="",
    uris=uris,
    workers=fields["workers"],
    folder=preparation_folder(uris["train"]),
)
log = StepLog(show)
verdict = {"error": "", "rows": {}}
with tempfile.TemporaryDirectory() as folder:
    outputs = {split: SimpleNamespace(path=f"{folder}/{split}", uri=uri, metadata={}) for split, uri in uris.items()}
    try:
        runner = kubernetes_runner(connect(fields["namespace"]), uris["train"], log.log, packages=STEP_PACKAGES)
        prepare_in_pods(
            request, parse_worker_settings(fields["settings"]), runner, outputs, Path(folder, "overview"), log
        )
        verdict["rows"] = {split: output.metadata["rows"] for split, output in outputs.items()}
    except (WorkersFailed, ValueError, OSError) as error:
        verdict["error"] = str(error)
print(f"{time.time():.3f} VERDICT {json.dumps(verdict)}", flush=True)
