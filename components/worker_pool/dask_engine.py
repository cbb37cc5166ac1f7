"""Runs tasks on a Dask cluster: on processes of this machine, or on a cluster that exists."""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_distributed.components.worker_pool.stored_tasks import StoredTasks, TaskFuture
from kfp_distributed.processes import ProcessGroup

_CONFIGURATION = {
    # Tasks hold bounded data, and their results are in the store. So nothing is to be spilled to the disk.
    "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "0.98",
    "DASK_DISTRIBUTED__WORKER__HTTP__ROUTES": "[]",
    "DASK_LOGGING__DISTRIBUTED": "error",
}
_WAITING_SECONDS = 120

_NOWHERE = "127.0.0.1:0"
"""Address that nobody needs to reach: a free port of this machine alone."""


@dataclass(frozen=True)
class DaskEngine:
    """A Dask cluster, see `Engine`.

    Attributes:
        scratch: Address of a folder or a prefix in an object store. With a cluster of other machines, it must be in an
            object store, whose credentials the workers have in their environment.
        workers: Processes of this machine; 0 to use the cluster at `scheduler`.
        scheduler: Address of a scheduler, such as tcp://10.0.0.7:8786. Its workers need this library.
        memory_limit: Memory of each local worker. One that needs more is ended, and its task starts again. Default:
            1 GiB.
    """

    scratch: str
    workers: int = 0
    scheduler: str = ""
    memory_limit: str = "1GiB"

    def __post_init__(self) -> None:
        """Check the arguments.

        Raises:
            ValueError: There are neither workers nor a scheduler, or both.
        """
        if self.workers < 0 or bool(self.workers) == bool(self.scheduler):
            raise ValueError(
                f"workers is {self.workers} and scheduler {self.scheduler!r}: give a number of local processes, at "
                "least 1, or the address of a scheduler"
            )

    @property
    def has_other_machines(self) -> bool:
        """Whether tasks may run on machines that do not see the disk of this one."""
        return bool(self.scheduler)

    @contextmanager
    def start(self, scratch: str) -> Iterator[StoredTasks]:
        """Start the workers, or connect to the scheduler.

        Raises:
            OSError: There are no workers.
        """
        import distributed

        if self.scheduler:
            with distributed.Client(self.scheduler, timeout=_WAITING_SECONDS, set_as_default=False) as client:
                yield dask_tasks(client, scratch, count_workers(client, 1))
            return
        # The scheduler runs in a thread of this process. The workers are started here and not by Dask, whose workers
        # run the main module of this process again, and may survive it.
        with (
            tempfile.TemporaryDirectory(prefix="workers-") as folder,
            ProcessGroup(folder=folder) as processes,
            started_scheduler("127.0.0.1") as cluster,
            distributed.Client(cluster, set_as_default=False) as client,
        ):
            command, environment = self._command(cluster.scheduler_address, folder), dask_environment(folder)
            for worker in range(self.workers):
                processes.start(f"worker {worker}", command, env=environment)
            try:
                yield dask_tasks(client, scratch, count_workers(client, self.workers))
            finally:
                processes.stop(grace_seconds=0)

    def _command(self, scheduler: str, folder: str) -> list[str]:
        options = {
            "--memory-limit": self.memory_limit,
            "--local-directory": folder,
            "--host": "127.0.0.1",
            "--death-timeout": "60",
        }
        values = [text for option in options.items() for text in option]
        return [sys.executable, "-m", "distributed.cli.dask_worker", scheduler, *worker_options(), *values]


@contextmanager
def started_scheduler(host: str, **options: Any) -> Iterator[Any]:  # noqa: ANN401
    """Run a scheduler without workers in a thread of this process, and yield its `LocalCluster`.

    Args:
        host: IP address of the scheduler.
        options: More arguments of `LocalCluster`.
    """
    import dask
    from distributed import LocalCluster

    # Dask also starts an HTTP server without authentication, on all addresses.
    scheduler_kwargs = {"dashboard": False, "dashboard_address": _NOWHERE}
    with (
        dask.config.set({"distributed.scheduler.http.routes": []}),
        LocalCluster(
            n_workers=0, processes=True, host=host, scheduler_kwargs=scheduler_kwargs, silence_logs="error", **options
        ) as cluster,
    ):
        yield cluster


def worker_options() -> list[str]:
    """Return options of the command of a worker: one task at a time, and no HTTP server that others reach."""
    return ["--nthreads", "1", "--no-dashboard", "--dashboard-address", _NOWHERE]


def count_workers(client: Any, least: int, seconds: float | None = _WAITING_SECONDS) -> int:  # noqa: ANN401  (Dask has no types)
    """Wait for workers, and return their number.

    Args:
        client: Client of the cluster.
        least: Lowest number of workers.
        seconds: How long to wait; None without a limit. Default: 120.

    Raises:
        OSError: There are too few.
    """
    try:
        client.wait_for_workers(least, timeout=seconds)
    except TimeoutError:
        raise OSError(
            f"fewer than {least} Dask workers are there after {seconds} s: check that the package distributed "
            "is installed in their environment, and read their log"
        ) from None
    return len(client.scheduler_info(n_workers=-1)["workers"])


def dask_tasks(client: Any, scratch: str, workers: int) -> StoredTasks:  # noqa: ANN401
    """Return what runs tasks. Each worker has a task that waits, beside the one that runs.

    Args:
        client: Client of the cluster.
        scratch: Address of the scratch.
        workers: Number of the workers.
    """

    def submit(function: Any, /, *arguments: str | bytes) -> TaskFuture:  # noqa: ANN401
        return _Task(client.submit(function, *arguments, pure=False))

    return StoredTasks(scratch, submit, 2 * workers)


@dataclass(frozen=True)
class _Task:
    """A task of Dask, see `TaskFuture`."""

    future: Any

    def result(self) -> None:
        """Wait for the task.

        Raises:
            OSError: Several workers ended while they ran the task, or the scheduler has ended.
        """
        from distributed import KilledWorker
        from distributed.client import FutureCancelledError

        try:
            self.future.result()
        except FutureCancelledError as error:
            raise OSError(f"the Dask scheduler has ended or forgotten a task: start the step again ({error})") from None
        except KilledWorker as error:
            raise OSError(
                "several workers ended while they ran the same task, because it needs more memory or because they were "
                "killed: raise worker_memory in distribution_specification (the memory limit of a Dask cluster of your "
                f"own), or start the step again ({str(error).partition('.')[0]})"
            ) from None


def dask_environment(folder: str) -> Mapping[str, str]:
    """Return the environment of workers on this machine, which import the library as this process does.

    Args:
        folder: Folder for the temporary files of tasks, which a killed worker leaves there.
    """
    paths = [str(Path(path).absolute()) for path in sys.path]
    return {**os.environ, **_CONFIGURATION, "PYTHONPATH": os.pathsep.join(paths), "TMPDIR": folder}
