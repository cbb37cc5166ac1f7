"""The program of each pod of a step that has workers.

The first pod leads, and has the scheduler of a Dask cluster. The others are its workers.
"""

import atexit
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_distributed.components.train.describe.manifests.pod import ADDRESS_VARIABLE
from kfp_distributed.components.worker_pool.pod_engine import PodEngine, read_scheduler, work_for
from kfp_distributed.components.worker_pool.worker_results import read_result, store_error
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import join_uri
from kfp_distributed.trainers.runtime.job_description import (
    JOB_VARIABLE,
    LOST_SECONDS_VARIABLE,
    STORE_SECONDS,
    JobDescription,
)
from kfp_distributed.trainers.runtime.lifecycle.ending import end, end_on_sigterm
from kfp_distributed.trainers.runtime.lifecycle.fatal_errors import exit_code
from kfp_distributed.trainers.runtime.lifecycle.lost_step import end_when_lost
from kfp_distributed.trainers.runtime.monitoring.sampling import print_samples, store_peak_memory

INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
"""Environment variable with the index of the pod, which Kubernetes sets."""

_FAILED = 1
"""Exit code of a pod that nobody needs any more, or that has found an error in the data. It fails the job."""

_RETRIED = 148
"""Exit code of a pod that has met an error of a machine or a network. Kubernetes replaces it, up to restart_limit."""

_LOOK_SECONDS = 2.0
"""Seconds between two looks for the scheduler's address, which is an object in a store."""


@dataclass(frozen=True)
class PodWork:
    """The work of the first pod.

    Attributes:
        parameters: Fields of the `WorkerRequest`.
        request: Hash of the job's description, under which the result is stored.
        store: Store of the results.
        engine: Runs tasks in the other pods.
    """

    parameters: Mapping[str, Any]
    request: str
    store: Store
    engine: PodEngine


def run_pod(lead: Callable[[PodWork], None], permanent: tuple[type[Exception], ...]) -> int:
    """Run this pod's part of the work; return its exit code.

    Args:
        lead: Does the work, and stores the result.
        permanent: Its errors that another attempt would meet again. They become the result.
    """
    # One stream for the container's log, because lines of two streams may be read in another order than written.
    os.dup2(sys.stdout.fileno(), sys.stderr.fileno())
    end_on_sigterm()
    atexit.register(store_peak_memory)
    end_when_lost(lambda: end(_FAILED), os.environ.get(LOST_SECONDS_VARIABLE))
    job = JobDescription.from_json(Path(os.environ[JOB_VARIABLE]).read_text())
    print_samples()
    folder, workers = str(job.parameters["folder"]), int(job.parameters["workers"])
    store = open_store(folder, retry_seconds=STORE_SECONDS)
    try:
        if int(os.environ.get(INDEX_VARIABLE, "0")):
            return _work(store, job.request)
        engine = PodEngine(join_uri(folder, "scratch"), folder, workers, os.environ[ADDRESS_VARIABLE])
        return _lead(PodWork(job.parameters, job.request, store, engine), lead, permanent)
    except StorageError as error:
        return exit_code(error)


def _lead(work: PodWork, lead: Callable[[PodWork], None], permanent: tuple[type[Exception], ...]) -> int:
    """Do the work, and store the result or the error; return the exit code."""
    if result := read_result(work.store, work.request):
        return _FAILED if result.error else 0
    try:
        lead(work)
    except permanent as error:
        store_error(work.store, work.request, error)
        return _FAILED
    except StorageError:
        raise
    except OSError:
        traceback.print_exc()
        return _RETRIED
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
