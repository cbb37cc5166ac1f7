"""Runs the pods of a step: starts their job, follows it to its end, and takes their results."""

from collections.abc import Callable
from contextlib import suppress

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.run.conclusions.status import failure_cause
from kfp_distributed.components.train.run.launch import follow_job
from kfp_distributed.components.train.run.runners.protocol import Runner
from kfp_distributed.components.train.run.signals import ended_by_signals
from kfp_distributed.components.train.tell.step_log import StepLog
from kfp_distributed.components.worker_pool.pod_engine import forget_scheduler
from kfp_distributed.components.worker_pool.worker_results import (
    WorkerResult,
    delete_all,
    forget_result,
    read_result,
)
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.trainers.runtime.job_description import STORE_SECONDS


class WorkersFailed(Exception):
    """The pods have left no output. The text says why."""


def run_in_pods(
    job: TrainingJob, runner: Runner, take_results: Callable[[Store, WorkerResult], None], step_log: StepLog
) -> None:
    """Run a job of workers, and take its results. Call it in the main thread, because it handles signals.

    No pod is left running when it returns or raises. What the pods have stored is deleted, unless the job failed for
    another reason than the data and the options: then the next attempt of the step goes on from it.

    Args:
        job: The job, see `plan_worker_job`.
        runner: Where the pods run.
        take_results: Writes the outputs of the step from what the pods have stored.
        step_log: Log of the step.

    Raises:
        ValueError: The cluster refuses the job. Nothing was started.
        WorkersFailed: The job failed, or the data or the options are wrong.
        ClusterError: The cluster refused the job.
        StorageError: The results cannot be read.
        SystemExit: The process received SIGTERM or SIGHUP.
    """
    store = open_store(job.description.parameters["folder"], retry_seconds=STORE_SECONDS)

    def clean_up() -> None:
        runner.stop()
        with suppress(StorageError):  # It has the key of a scheduler that has ended.
            forget_scheduler(store)

    # From here on: a previous attempt of this step may have left the job, which a cancel must delete as well.
    with ended_by_signals(clean_up):
        result = _result_of(job, runner, store, step_log)
    if result.error:
        delete_all(store)
        raise WorkersFailed(result.error)
    take_results(store, result)
    with suppress(StorageError):  # The outputs are complete.
        delete_all(store)


def _result_of(job: TrainingJob, runner: Runner, store: Store, step_log: StepLog) -> WorkerResult:
    """Run the job, or follow what an earlier attempt of this step has left of it, and return its result.

    Raises:
        WorkersFailed: It has none.
    """
    result = read_result(store, job.description.request)
    if result and not result.error:
        step_log.log("INFO", "an earlier attempt of this step has done the work; nothing is done again")
        try:
            if runner.adopt(job):
                follow_job(runner, job, step_log)
        except (ClusterError, ValueError) as error:
            step_log.log("WARNING", f"the job of the earlier attempt cannot be found: {error}")
        return result
    if result:
        forget_result(store)
    runner.check(job)
    runner.start(job)
    status = follow_job(runner, job, step_log)
    # The result decides. If there is one, the work has succeeded, whatever failed afterwards.
    result = read_result(store, job.description.request)
    if result is None:
        raise WorkersFailed(failure_cause(status, frames=False))
    return result
