"""The program of each pod that prepares data, which is run with `python -m`.

The first pod plans, and has the scheduler of a Dask cluster. The others are its workers.
"""

import atexit
import os
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kfp_distributed.components.prepare_data.download_limit import SourceTooLarge
from kfp_distributed.components.prepare_data.pod_engine import PodEngine, read_scheduler, work_for
from kfp_distributed.components.prepare_data.preparation_job import PreparationRequest
from kfp_distributed.components.prepare_data.preparation_options import parse_options
from kfp_distributed.components.prepare_data.preparation_results import read_result, store_error, store_results
from kfp_distributed.components.prepare_data.prepare import prepare
from kfp_distributed.components.train.describe.manifests.pod import ADDRESS_VARIABLE
from kfp_distributed.storage.errors import ChecksumMismatch, StorageError
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.shards import fetch_manifest
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import join_uri
from kfp_distributed.trainers.runtime.ending import end, end_on_sigterm, run_to_end
from kfp_distributed.trainers.runtime.job_description import JOB_VARIABLE, JobDescription
from kfp_distributed.trainers.runtime.lost_step import end_when_lost
from kfp_distributed.trainers.runtime.sampling import print_samples, store_peak_memory
from kfp_distributed.trainers.runtime.unless_trained import STORE_SECONDS, exit_code

INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
"""Environment variable with the index of the pod, which Kubernetes sets."""

_FAILED = 1
"""Exit code of a pod that nobody needs any more, or that has found an error in the data. It fails the job."""

_RETRIED = 148
"""Exit code of a pod that has met an error of a machine or a network. Kubernetes replaces it, up to restart_limit."""

_LOOK_SECONDS = 2.0
"""Seconds between two looks for the scheduler's address, which is an object in a store."""


@dataclass
class _Output:
    """A dataset that the first pod writes, see `Artifact`."""

    path: str
    uri: str
    metadata: dict[str, Any] = field(default_factory=dict)


def main() -> int:
    """Run this pod's part of the preparation; return its exit code."""
    # One stream for the container's log, because lines of two streams may be read in another order than written.
    os.dup2(sys.stdout.fileno(), sys.stderr.fileno())
    end_on_sigterm()
    atexit.register(store_peak_memory)
    end_when_lost(lambda: end(_FAILED))
    job = JobDescription.from_json(Path(os.environ[JOB_VARIABLE]).read_text())
    print_samples()
    request = PreparationRequest(**job.parameters)
    store = open_store(request.folder, retry_seconds=STORE_SECONDS)
    try:
        if int(os.environ.get(INDEX_VARIABLE, "0")):
            return _work(store, job.request)
        return _lead(store, job.request, request)
    except StorageError as error:
        return exit_code(error)


def _lead(store: Store, name: str, request: PreparationRequest) -> int:
    """Prepare the data, and store the results or the error; return the exit code."""
    if result := read_result(store, name):
        return _FAILED if result.error else 0
    datasets = {split: _Output(str(Path(split).absolute()), uri) for split, uri in request.uris.items()}
    overview = Path("overview.html").absolute()
    address = os.environ[ADDRESS_VARIABLE]
    engine = PodEngine(join_uri(request.folder, "scratch"), request.folder, request.workers, address)
    try:
        like = fetch_manifest(request.like) if request.like else None
        options = parse_options(**request.parameters, source_fingerprint=request.source_fingerprint, like=like)
        prepare(request.source, options, datasets, str(overview), request.sources_of_splits, engine)
    except (ValueError, ChecksumMismatch, SourceTooLarge) as error:
        store_error(store, name, error)
        return _FAILED
    except OSError:
        traceback.print_exc()
        return _RETRIED
    store_results(store, name, datasets, overview)
    return 0


def _work(store: Store, name: str) -> int:
    """Run tasks until there are results; return the exit code. The scheduler may start again in another pod."""
    while not (result := read_result(store, name)):
        try:
            scheduler = read_scheduler(store)
        except ValueError as error:
            print(error, flush=True)
            return _FAILED
        if scheduler:
            work_for(scheduler)
        time.sleep(_LOOK_SECONDS)
    return _FAILED if result.error else 0


if __name__ == "__main__":
    run_to_end(main)
