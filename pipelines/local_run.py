"""Runs pipelines on this machine with the local runner of kfp, and with an S3 server for the duration of the run."""

import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, cast

from kfp import local
from rich.console import Console

from kfp_distributed.components.deploy_model.local_deployment import SERVERS_VARIABLE
from kfp_distributed.components.kfp_interface.kfp_internals import (
    SharedContext,
    corrected_runner,
    input_without_value,
    local_configuration,
    restore_local_configuration,
)
from kfp_distributed.components.train.run.runners.runner_choice import RUNNER_VARIABLE
from kfp_distributed.components.train.run.signals import ended_by_signals
from kfp_distributed.components.train.tell.step_log import SHOW_SAMPLES_VARIABLE
from kfp_distributed.pipelines.local_servers import LocalServers
from kfp_distributed.pipelines.run_view import RunView
from kfp_distributed.processes.group import ProcessGroup
from kfp_distributed.processes.guard import Process, process_table
from kfp_distributed.storage import embedded_object_store
from kfp_distributed.storage.object_stores.buckets import EMBEDDED_STORE_VARIABLE

_STEP_END_SECONDS = 20.0
"""Seconds until an interrupted step is killed. kfp waits 0.25 s; replicas take up to 5 s to end."""

_STOP_SECONDS = 0.1
"""Seconds until a local run that ends has stopped to take requests for model servers."""

_in_use = threading.Lock()
"""Held by the local run of this process. It changes the process: environment, kfp.local, standard output."""

_SIGINT_SECONDS = 2.0
"""Seconds before SIGTERM is sent to steps. Ctrl-C in a terminal reaches them too; in a notebook it may not."""


@dataclass(frozen=True)
class LocalRun:
    """Folders of a local run.

    Attributes:
        artifacts: Folder with a folder for each run, and in it one for each step. This is kfp's pipeline root.
        object_store: Folder with a folder for each bucket, or None if the environment names an object store.
        log: File with everything that was printed, or None if no progress is shown.
    """

    artifacts: Path
    object_store: Path | None
    log: Path | None = None


@contextmanager
def local_run(
    folder: str | Path = "kfp-distributed-run", *, embedded_store: bool = True, progress: bool | None = None
) -> Iterator[LocalRun]:
    """Run the pipelines and components that are called inside this context on this machine.

    In a terminal and in a notebook, a table shows the progress of the steps, and of each replica of a training: its
    epoch, metrics, rows per second, memory and the time left. Everything that is printed is in the file run.log.
    Elsewhere kfp prints its log.

    A process has one local run at a time, because the run changes the environment and kfp.local. A second one, also in
    another thread, is refused and does not disturb the first. To run several at a time, start a process for each.

    An interrupt, as by Ctrl-C or by the stop button of a notebook, ends all processes of the steps, and no further step
    begins in this run. Under `asyncio.run` too, the first Ctrl-C does so. A program may handle SIGINT itself: its
    handler interrupts nothing if it raises no exception.

    A model that `deploy_model` deploys is served by a process of this run until the context ends. Request predictions
    inside the context, after the pipeline. The output of the server is in the folder model-servers.

    The local runner of kfp 2.17 evaluates a `dsl.If` as False if it compares a named output, such as
    `outputs["score"]`, of a task in the same pipeline or the same ParallelFor. A cluster evaluates it. A line in the
    log reports this. To run in both places, put the `dsl.If` into a pipeline of its own that takes the value as an
    input.

    Example:
        with local_run("my-run"):
            train_and_export(train_parameters={"epochs": 5})

    Args:
        folder: Folder for artifacts and objects, which is created if missing. Default: "kfp-distributed-run".
        embedded_store: Whether to start an S3 server on a free port of 127.0.0.1, with random credentials, and to pass
            it to the steps. A step creates the buckets that it names there. False uses the object store of the
            environment (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), where a bucket must exist. Pods
            cannot reach the S3 server. With it, runner="auto" means this machine even if KUBECONFIG is set, and
            runner="kubernetes" is refused. Default: True.
        progress: Whether to show progress in place of kfp's log. Default: None, which means in a terminal and in a
            notebook.

    Yields:
        The folders of the run.

    Raises:
        ValueError: An input of the pipeline has no value.
        RuntimeError: Another local run of this process has not ended, or the S3 server does not start. The message has
            its last lines.
    """
    if not _in_use.acquire(blocking=False):
        raise RuntimeError(
            "local_run cannot start: another local_run of this process has not ended, and both would change its "
            "environment and kfp.local. Wait until the other one has ended, or run this one in a process of its own"
        )
    try:
        with _run_in(Path(folder).resolve(), embedded_store, progress) as run:
            yield run
    except ValueError as error:
        if name := input_without_value(error):
            raise ValueError(
                f"the input {name!r} of the pipeline has the default None, for which kfp's local runner has no value: "
                "pass a value, or use another default"
            ) from error
        raise
    finally:
        _in_use.release()


@contextmanager
def _run_in(root: Path, embedded_store: bool, progress: bool | None) -> Iterator[LocalRun]:
    artifacts = root / "artifacts"
    artifacts.mkdir(parents=True, exist_ok=True)
    cleanup = ExitStack()
    # Only the main thread may handle signals. By default SIGTERM ends Python without any cleanup.
    in_main_thread = threading.current_thread() is threading.main_thread()
    with ended_by_signals(cleanup.close) if in_main_thread else closing(cleanup):
        cleanup.callback(_restore, dict(os.environ), local_configuration())
        running = cleanup.enter_context(corrected_runner())
        logging.getLogger().addFilter(_explain_unresolved_condition)
        cleanup.callback(logging.getLogger().removeFilter, _explain_unresolved_condition)
        # kfp leaves a folder for each step. A process that still writes into one may keep it.
        scratch = tempfile.TemporaryDirectory(prefix="kfp-", ignore_cleanup_errors=True)
        os.environ["TMPDIR"] = cleanup.enter_context(scratch)
        # If this process is killed, the guard ends the model servers and deletes the folder.
        group = cleanup.enter_context(ProcessGroup(folder=scratch.name))
        objects = _start_store(cleanup, root / "object-store") if embedded_store else None
        _start_servers(cleanup, Path(scratch.name, "servers"), group, root / "model-servers")
        local.init(
            runner=local.SubprocessRunner(use_venv=False),
            pipeline_root=str(artifacts),
            workspace_root=str(root / "workspace"),
        )
        end = _EndOfSteps(running)
        log = _show_progress(cleanup, root / "run.log", progress, lambda: running.is_refused)
        with _after_signals_that_interrupt(end.begin) if in_main_thread else nullcontext():
            try:
                yield LocalRun(artifacts=artifacts, object_store=objects, log=log)
            except (KeyboardInterrupt, SystemExit):
                end.begin()
                raise
            finally:
                end.wait()


def _show_progress(
    cleanup: ExitStack, file: Path, progress: bool | None, is_interrupted: Callable[[], bool]
) -> Path | None:
    """Show progress until `cleanup` is closed; return the file of the log, or None if no progress is shown."""
    # Created before standard output is redirected.
    console = Console(file=sys.stdout)
    shown = console.is_terminal or console.is_jupyter
    if progress is False or (progress is None and not shown):
        return None
    if shown:
        os.environ[SHOW_SAMPLES_VARIABLE] = "true"
    log = cleanup.enter_context(file.open("w", encoding="utf-8", buffering=1))
    view = RunView(console, log, echo=True, is_interrupted=is_interrupted)
    cleanup.push(partial(_explain_failure, view, console, file))
    cleanup.enter_context(view)
    cleanup.enter_context(redirect_stdout(cast(Any, view)))
    return file


def _explain_failure(view: RunView, console: Console, file: Path, *error: object) -> None:
    """Print the last lines of a step that failed. kfp's own error does not have them."""
    if view.failed:
        text = "\n".join([f"The step {view.failed} failed. Its log is in {file}. It ends with:", *view.last_lines])
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def _start_store(cleanup: ExitStack, folder: Path) -> Path:
    """Start the S3 server, which `cleanup` stops, and pass it to the steps; return the folder of its buckets."""
    store = cleanup.enter_context(embedded_object_store(folder))
    os.environ.update(store.environment())
    # Pods cannot reach this store, so runner="auto" must not choose a cluster.
    os.environ[RUNNER_VARIABLE] = "local"
    os.environ[EMBEDDED_STORE_VARIABLE] = "true"
    return store.folder


def _start_servers(cleanup: ExitStack, socket_path: Path, group: ProcessGroup, logs: Path) -> None:
    """Take requests of steps for model servers until `cleanup` is closed."""
    # Also if it takes none: a step must not ask an outer run.
    os.environ[SERVERS_VARIABLE] = str(socket_path)
    try:
        servers = cleanup.enter_context(LocalServers(socket_path, group, logs))
    except OSError as error:  # On macOS, the path of a Unix socket has at most 103 bytes.
        print(f"deploy_model does not work in this local_run, set TMPDIR to a shorter path: {error}", flush=True)
        return
    threading.Thread(target=servers.serve_forever, args=(_STOP_SECONDS,), daemon=True).start()
    cleanup.callback(servers.shutdown)


def _restore(environment: Mapping[str, str], configuration: object) -> None:
    """Restore the environment, and the state of `kfp.local`."""
    os.environ.clear()
    os.environ.update(environment)
    restore_local_configuration(configuration)


def _explain_unresolved_condition(record: logging.LogRecord) -> bool:
    """Explain a message of kfp's local runner. Every record is kept.

    `ConditionEvaluator` of kfp 2.17 resolves only outputs with the name "Output" of tasks beside the condition. It logs
    that it could not resolve another one, and evaluates the condition as False.
    """
    hint, _, output = record.getMessage().partition("Could not resolve CEL parameter: pipelinechannel--")
    if output and not hint:
        print(
            f"kfp.local cannot read the output {output} and evaluates its dsl.If as False; a cluster evaluates it. "
            "Put the dsl.If into a pipeline of its own that takes the value as an input",
            flush=True,
        )
    return True


@contextmanager
def _after_signals_that_interrupt(call: Callable[[], object]) -> Iterator[None]:
    """Call a function when the handler of a signal raises an exception, which ends or interrupts what runs.

    A handler that raises none lets the program continue, and so the run. The function is also called after the handler
    that `asyncio.run` sets for SIGINT, which cancels the main task instead.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    # Others are ignored, as SIGHUP under `nohup`, or end the process.
    handlers = {int(number): handler for number, handler in before.items() if callable(handler)}

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            handlers[number](number, frame)
        except BaseException:
            call()
            raise
        if _is_of_asyncio(handlers[number]):
            call()

    for number in handlers:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _is_of_asyncio(handler: object) -> bool:
    """Return whether `asyncio.run` has set a handler, which is a method with the task to cancel."""
    return isinstance(handler, partial) and getattr(handler.func, "__module__", "") == "asyncio.runners"


class _EndOfSteps:
    """Ends the processes of steps after an interrupt.

    It works in a thread, because the main thread may wait: kfp runs the steps of a ParallelFor in threads, and waits
    until all have ended. Replicas are in sessions of their own. The step that started them ends them.
    """

    def __init__(self, running: SharedContext) -> None:
        """Take the child processes that exist now as processes of others.

        Args:
            running: The context in which kfp runs each step.
        """
        self._running = running
        self._others = {pid for pid, process in process_table().items() if process.parent == os.getpid()}
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        """Let no further step begin, and end those that run. It may be called again."""
        self._running.is_refused = True
        if self._thread.ident is None:
            self._thread.start()

    def wait(self) -> None:
        """Wait until the processes of the steps have ended, if `begin` was called."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        begun, own_session = time.monotonic(), os.getsid(0)
        steps: dict[int, Process] = {}
        is_signalled = {signal.SIGTERM: False, signal.SIGKILL: False}
        while True:
            # Asked before the processes, so that a step which began before the interrupt is found.
            is_running = self._running.users > 0
            table = {pid: process for pid, process in process_table().items() if process.session == own_session}
            # A process stays known after its parent has ended.
            steps = {
                pid: table[pid]
                for pid, process in steps.items()
                if pid in table and table[pid].started == process.started
            }
            children = {pid: process for pid, process in table.items() if process.parent == os.getpid()}
            steps |= {pid: process for pid, process in children.items() if pid not in self._others}
            while more := {
                pid: process for pid, process in table.items() if process.parent in steps and pid not in steps
            }:
                steps |= more
            seconds = time.monotonic() - begun
            if not (steps or is_running) or seconds > _STEP_END_SECONDS + 1:
                return
            for number, due in ((signal.SIGTERM, _SIGINT_SECONDS), (signal.SIGKILL, _STEP_END_SECONDS)):
                if seconds > due and not is_signalled[number]:
                    is_signalled[number] = True
                    for pid in steps:
                        with suppress(ProcessLookupError):
                            os.kill(pid, number)
            time.sleep(0.05)
