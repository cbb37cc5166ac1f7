"""Runs pipelines on this machine: kfp's local runner, with an S3 server of its own for the length of the run."""

import logging
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kfp import local
from kfp.local.config import LocalExecutionConfig

from kfp_distributed.components.train.runners.choose import EMBEDDED_STORE_VARIABLE, RUNNER_VARIABLE
from kfp_distributed.components.train.signals import ended_by_signals
from kfp_distributed.processes.guard import process_table
from kfp_distributed.storage import embedded_object_store

_STEP_END_SECONDS = 20.0
"""How long an interrupted step may take to end. kfp gives it a quarter of a second; replicas take up to five."""


@dataclass(frozen=True)
class LocalRun:
    """Where a local run keeps things.

    Attributes:
        artifacts: Folder with one folder a run and in it one a step (kfp's pipeline root).
        object_store: Folder with one folder a bucket, or None where the environment names an object store.
    """

    artifacts: Path
    object_store: Path | None


@contextmanager
def local_run(folder: str | Path = "kfp-distributed-run", *, embedded_store: bool = True) -> Iterator[LocalRun]:
    """Runs the pipelines and components that are called inside it on this machine.

    The local runner of kfp 2.17 takes a `dsl.If` as False if it compares a named output, such as `outputs["accuracy"]`,
    of a task in the same pipeline or the same ParallelFor. A cluster evaluates it. A line in the log says when this
    happens. To run in both places, put the `dsl.If` into a pipeline of its own that takes the value as an input.

    Example:
        with local_run("my-run"):
            train_and_export(train_parameters={"epochs": 5})

    Args:
        folder: Where artifacts and objects are kept; made if missing.
        embedded_store: Whether to start an S3 server on a free port of 127.0.0.1, with credentials that nobody else
            knows, and to point the steps at it. False leaves the object store to the environment (AWS_ENDPOINT_URL,
            AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY). Pods cannot reach the S3 server, so with it runner="auto" means
            this machine, whatever KUBECONFIG says, and runner="kubernetes" is refused.

    Yields:
        Where things are.

    Raises:
        RuntimeError: The S3 server does not start; the message has its last lines.
    """
    root = Path(folder).resolve()
    artifacts = root / "artifacts"
    artifacts.mkdir(parents=True, exist_ok=True)
    cleanup = ExitStack()
    # Only the main thread may handle signals. By default SIGTERM ends Python with nothing cleaned up.
    in_main_thread = threading.current_thread() is threading.main_thread()
    with ended_by_signals(cleanup.close) if in_main_thread else closing(cleanup):
        cleanup.callback(_restore, dict(os.environ), LocalExecutionConfig.instance)
        logging.getLogger().addFilter(_explain_unresolved_condition)
        cleanup.callback(logging.getLogger().removeFilter, _explain_unresolved_condition)
        # kfp makes a folder for each step and leaves it there. What still writes into it may keep its own.
        scratch = tempfile.TemporaryDirectory(prefix="kfp-", ignore_cleanup_errors=True)
        os.environ["TMPDIR"] = cleanup.enter_context(scratch)
        objects = _start_store(cleanup, root / "object-store") if embedded_store else None
        local.init(
            runner=local.SubprocessRunner(use_venv=False),
            pipeline_root=str(artifacts),
            workspace_root=str(root / "workspace"),
        )
        before = _children()
        try:
            yield LocalRun(artifacts=artifacts, object_store=objects)
        except (KeyboardInterrupt, SystemExit):
            _await_steps(before)
            raise


def _start_store(cleanup: ExitStack, folder: Path) -> Path:
    """Starts the S3 server, which `cleanup` stops, and points the steps at it; returns the folder of its buckets."""
    store = cleanup.enter_context(embedded_object_store(folder))
    os.environ.update(store.environment())
    # Pods cannot reach this store, so runner="auto" must not look for a cluster.
    os.environ[RUNNER_VARIABLE] = "local"
    os.environ[EMBEDDED_STORE_VARIABLE] = "true"
    return store.folder


def _restore(environment: Mapping[str, str], configuration: LocalExecutionConfig | None) -> None:
    """Restores the environment, and the state of `kfp.local`, which has no function for that."""
    os.environ.clear()
    os.environ.update(environment)
    LocalExecutionConfig.instance = configuration


def _explain_unresolved_condition(record: logging.LogRecord) -> bool:
    """Explains what kfp's local runner only hints at; keeps each record.

    `ConditionEvaluator` of kfp 2.17 finds outputs of tasks beside the condition by their name "Output" alone, logs that
    it could not resolve another one, and goes on with False.
    """
    hint, _, output = record.getMessage().partition("Could not resolve CEL parameter: pipelinechannel--")
    if output and not hint:
        print(
            f"kfp.local cannot read the output {output} and takes its dsl.If as False, as a cluster would not. "
            "Put the dsl.If into a pipeline of its own that takes the value as an input",
            flush=True,
        )
    return True


def _children() -> set[int]:
    return {pid for pid, each in process_table().items() if each.parent == os.getpid()}


def _await_steps(before: set[int]) -> None:
    """Waits for the processes of the steps: they see that nobody reads what they print, and end."""
    until = time.monotonic() + _STEP_END_SECONDS
    while _children() - before and time.monotonic() < until:
        time.sleep(0.05)
