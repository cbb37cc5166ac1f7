"""A Dask cluster of the pods of a job. One pod has the scheduler, whose address the workers read from the store.

The port of a scheduler runs any code of whoever reaches it. So it accepts only those who have a key, which each start
of its pod makes, and which stands beside the address. Whoever can read this folder of the store can run code in the
pods.
"""

import json
import platform
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kfp_distributed.components.worker_pool.dask_engine import (
    count_workers,
    dask_environment,
    dask_tasks,
    started_scheduler,
    worker_options,
)
from kfp_distributed.components.worker_pool.stored_tasks import StoredTasks
from kfp_distributed.processes import ProcessGroup
from kfp_distributed.storage.errors import KeyNotFound, StorageError
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store

_RECORD = "scheduler.json"

_SECONDS_WITHOUT_SCHEDULER = 15
"""Seconds for which a worker looks for the scheduler of a record, whose pod may have been replaced by another one."""

_SECONDS_FOR_WORKERS = 120
"""Seconds after which a line says how many workers have reached the scheduler."""


def versions() -> dict[str, str]:
    """Return the versions that the processes of one job must have in common."""
    packages = ("dask", "distributed", "numpy", "pyarrow")
    return {"python": platform.python_version(), **{package: version(package) for package in packages}}


@dataclass(frozen=True)
class SchedulerRecord:
    """How workers reach the scheduler.

    Attributes:
        address: Its address, such as tls://10.0.0.7:41230.
        certificate: PEM of the certificate of the scheduler and of all workers, who trust no other one.
        key: PEM of its private key.
        versions: The versions of its process.
    """

    address: str
    certificate: str
    key: str = field(repr=False)
    versions: Mapping[str, str]


@dataclass(frozen=True)
class PodEngine:
    """A Dask cluster of pods whose scheduler is in this process, see `Engine`.

    Attributes:
        scratch: Address of the scratches.
        folder: Address of the folder for the record of the scheduler.
        workers: Number of the workers.
        address: IP address of this pod.
    """

    scratch: str
    folder: str
    workers: int
    address: str

    @property
    def has_other_machines(self) -> bool:
        """See `Engine`."""
        return True

    @contextmanager
    def start(self, scratch: str) -> Iterator[StoredTasks]:
        """Start the scheduler, store its address, and wait for the first worker. The others may come later."""
        import distributed

        security = distributed.Security.temporary()
        with (
            started_scheduler(self.address, protocol="tls://", security=security) as cluster,
            distributed.Client(cluster, security=security, set_as_default=False) as client,
        ):
            address, certificate, key = cluster.scheduler_address, security.tls_ca_file, security.tls_client_key
            with _published(open_store(self.folder), SchedulerRecord(address, certificate, key, versions())):
                # The step's timeouts end a job whose workers never start.
                count_workers(client, 1, None)
                threading.Thread(target=_report_workers, args=(client, self.workers), daemon=True).start()
                yield dask_tasks(client, scratch, self.workers)


def _report_workers(client: Any, workers: int) -> None:  # noqa: ANN401  (Dask has no types)
    """Print when all workers are there, or how many are missing."""
    with suppress(Exception):  # The cluster may end meanwhile.
        try:
            client.wait_for_workers(workers, timeout=_SECONDS_FOR_WORKERS)
            print(f"all {workers} workers are there", flush=True)
        except TimeoutError:
            there = len(client.scheduler_info(n_workers=-1)["workers"])
            print(
                f"warning: {there} of {workers} workers are there after {_SECONDS_FOR_WORKERS} s. The others wait for "
                "a node, or cannot reach this pod: see their lines, and allow TCP between the pods of the job",
                flush=True,
            )


@contextmanager
def _published(store: Store, record: SchedulerRecord) -> Iterator[None]:
    store.write(_RECORD, json.dumps(asdict(record)).encode())
    try:
        yield
    finally:
        with suppress(StorageError):  # The results are complete, or another error is on its way.
            forget_scheduler(store)


def forget_scheduler(store: Store) -> None:
    """Delete the record of a scheduler that has ended.

    Raises:
        StorageError: It cannot be deleted.
    """
    store.delete([_RECORD])


def read_scheduler(store: Store) -> SchedulerRecord | None:
    """Return how to reach the scheduler; None while there is none.

    Raises:
        StorageError: The store cannot be read.
        ValueError: Its process has other versions than this one.
    """
    try:
        record = SchedulerRecord(**json.loads(store.read(_RECORD)))
    except KeyNotFound:
        return None
    own = versions()
    if different := [name for name in own if own[name] != record.versions.get(name)]:
        texts = (f"{name} {own[name]} and not {record.versions.get(name)}" for name in different)
        raise ValueError(
            f"this worker has {', '.join(texts)}, which the scheduler has, so that the results might differ: use an "
            "image with the packages, or start the step again"
        )
    return record


def work_for(record: SchedulerRecord) -> None:
    """Run a worker until it ends: its scheduler has ended, or the worker was killed."""
    with (
        tempfile.TemporaryDirectory(prefix="worker-") as folder,
        ProcessGroup(folder=folder) as processes,
    ):
        command = _command(record, Path(folder))
        code = processes.start("worker", command, env=dask_environment(folder)).wait()
    if code:
        print(
            f"the worker of the scheduler {record.address} ended with exit code {code}: it was killed, or has not "
            f"reached the scheduler for {_SECONDS_WITHOUT_SCHEDULER} s. If this stays so, allow TCP between the pods "
            "of the job",
            flush=True,
        )


def _command(record: SchedulerRecord, folder: Path) -> list[str]:
    """Return the command of a worker, and write the key to files that nobody else can read."""
    texts = {"certificate.pem": record.certificate, "key.pem": record.key}
    for name, text in texts.items():
        (folder / name).touch(mode=0o600)
        (folder / name).write_text(text)
    certificate, key = (str(folder / name) for name in texts)
    options = {
        "--memory-limit": "0",  # The pod has its own.
        "--local-directory": str(folder),
        "--death-timeout": str(_SECONDS_WITHOUT_SCHEDULER),
        "--tls-ca-file": certificate,
        "--tls-cert": certificate,
        "--tls-key": key,
    }
    values = [text for option in options.items() for text in option]
    program = [sys.executable, "-m", "distributed.cli.dask_worker"]
    # A nanny would start a killed worker again without a word.
    return [*program, record.address, "--no-nanny", *worker_options(), *values]
