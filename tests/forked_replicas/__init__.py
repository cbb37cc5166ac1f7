"""Lets tests start replicas and steps without importing their frameworks anew: a server for each Python forks them.

A plugin of pytest. A test that asks for real command lines is marked `command_line`.

All forks of a server have its hash seed. So ranks that are forks agree on the order of a set, though those of a user do
not. Only a test that is marked finds a trainer that depends on it.
"""

import fcntl
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from kfp.local import subprocess_task_handler

from kfp_distributed.library.archive import ARCHIVE_KEY, make_archive
from kfp_distributed.library.content import REPLICA_PACKAGES, read_library
from kfp_distributed.processes import ProcessGroup

ENTRY = "kfp_distributed.trainers.runtime.entry"
_FORKED = (ENTRY, "kfp_distributed.trainers.runtime.torchrun", "kfp.dsl.executor_main", "distributed.cli.dask_worker")
"""Modules that forks run in forks: replicas of a step, torchrun of a replica, its ranks, and Dask workers of a pod."""
_STARTED = (ENTRY, "kfp_distributed.cli.main", "distributed.cli.dask_worker")
"""Modules that this process runs in forks: replicas, model servers, and Dask workers."""
_TRAINERS = ("keras_classifier", "keras_horovod", "torch_classifier", "torch_horovod")
_STEPS = (
    "fingerprint_source",
    "prepare_data",
    "train",
    "evaluate",
    "export_model",
    "deploy_model",
    "predict",
    "import_model",
    "evaluate_language_model",
    "tune",
)
IMPORTED = (
    *_FORKED,
    "torch.distributed.run",
    *(f"kfp_distributed.trainers.{name}" for name in _TRAINERS),
    *(f"kfp_distributed.components.{name}.step" for name in _STEPS),
    "distributed.cli.dask_scheduler",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.tensor.parallel",
    "trl.trainer.sft_trainer",
    "transformers.models.llama.modeling_llama",
    "mlflow.server",
)
"""What tests train with, too, and servers of tests. A Python has some of them."""
_IMPORTS = {
    "TF_USE_LEGACY_KERAS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "_KFP_RUNTIME": "true",
    "OMP_NUM_THREADS": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
"""Variables that modules read when they are imported. Replicas and steps of tests set most of them to these values.

Libraries have read OMP_NUM_THREADS=1 in each fork. The local runner sets more for a job of one replica.
"""
PROGRAMS = Path(__file__).parent
"""Folder of server.py and client.py."""
_start, _environment = ProcessGroup.start, subprocess_task_handler.environment
NAMES_VARIABLE = "TESTS_FORKED_REPLICAS_NAMES"
"""Variable with the names of the others, for the server. A Python that is a script sets more of them."""
_FORKS = "TESTS_FORKED_REPLICAS_FORK"
"""Variable that is set while a test may fork."""
SITE_VARIABLE = "TESTS_FORKED_REPLICAS_SITE"
"""Variable with the folder of a sitecustomize.py that forks run first, beside that of PYTHONPATH.

The local runner sets PYTHONPATH itself."""
FOLDER_VARIABLE = "TESTS_FORKED_REPLICAS"
"""Variable with the folder of the servers' sockets. The workers of a run share them."""
_at_start: dict[str, str] = {}
"""Variables of pytest before its tests. Servers have no variables of the test that starts them by chance."""


def pytest_configure(config: pytest.Config) -> None:
    """Create the folder of the servers before the workers start, and note the environment."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="replicas-")
        config.add_cleanup(folder.cleanup)
        os.environ[FOLDER_VARIABLE] = folder.name
        os.environ[FOLDER_VARIABLE + "_OWNER"] = str(os.getpid())
    _at_start.update(os.environ)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if a server has failed. Its clients have run their command lines since."""
    if _logs_of_failed_servers(session.config):
        # TESTS_FAILED would be forgiven if a failed test passes when it runs again.
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show the logs of servers that have failed, whose folder is about to be deleted."""
    for log in _logs_of_failed_servers(config):
        terminalreporter.section(f"a server of tests/forked_replicas has failed: {log}")
        terminalreporter.write_line(log.read_text(errors="replace"))


def _logs_of_failed_servers(config: pytest.Config) -> list[Path]:
    """Return the logs of the servers that have ended. They should end after this process."""
    is_worker = hasattr(config, "workerinput")
    logs = [] if is_worker else sorted(Path(os.environ[FOLDER_VARIABLE]).glob("*.log"))
    return [log for log in logs if not _listens(log.with_suffix(""))]


def _listens(address: Path) -> bool:
    with closing(socket.socket(socket.AF_UNIX)) as client:
        try:
            client.connect(str(address))
        except OSError:
            return False
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fork the replicas and steps of a test, those of its fixtures included, unless it is marked."""
    with pytest.MonkeyPatch.context() as patch:
        if not any(map(item.get_closest_marker, ("command_line", "cluster"))):
            patch.setenv(_FORKS, "true")
            # Ranks ask each other every millisecond by default, which is most of what they do where processors are few.
            patch.setenv("HOROVOD_CYCLE_TIME", "5")
            patch.setattr(ProcessGroup, "start", _start_forked)
            patch.setattr(subprocess_task_handler, "environment", _forking_environment)
        return (yield)


def _start_forked(group: ProcessGroup, name: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a child process as ProcessGroup.start does. A module of `_STARTED` in its command line is forked."""
    words = list(argv)
    is_forked = str(PROGRAMS / "client.py") in words
    for index in range(1, 0 if is_forked else len(words) - 1):
        python, environment = words[index - 1], options.get("env") or os.environ
        if words[index] == "-m" and words[index + 1] in _STARTED and _can_be_forked(python, environment.get("PATH")):
            words[index - 1 : index] = forked(python)
            break
    return _start(group, name, words, **options)


def _can_be_forked(python: str, path: str | None) -> bool:
    """Return whether no script of a test starts the Python. An environment may have a script as its Python."""
    program = shutil.which(python, path=path)
    if not program:
        return False
    with Path(program).open("rb") as file:
        is_script = file.read(2) == b"#!"
    return not is_script or Path(program).resolve().parents[1].joinpath("complete").exists()


@contextmanager
def _forking_environment(*arguments: Any, **options: Any) -> Iterator[str]:
    """Yield the Python of a step as kfp.local does, or a script that has the step and its replicas forked."""
    with _environment(*arguments, **options) as python:
        yield str(programs_of_forks() / "python") if python == sys.executable else python


def programs_of_forks() -> Path:
    """Return the folder of a `python` and `python3` that have steps and replicas forked, and of this Python's programs.

    In a test that is marked `command_line`, it is the folder of this Python.
    """
    if _FORKS not in os.environ:
        return Path(sys.executable).parent
    # The client's second argument from the end is the address of the server.
    return Path(f"{forked(sys.executable)[-2]}.bin")


def forked(python: str | Path, *arguments: str | Path) -> list[str]:
    """Return the command line that has a Python forked with these arguments. It starts the server if there is none.

    In a test that is marked `command_line`, it is the Python's own.

    Args:
        python: The Python.
        arguments: `-m` and a module, `-c` and code, or a path, and the arguments of the program.
    """
    if _FORKS not in os.environ:
        return [str(python), *map(str, arguments)]
    folder = Path(os.environ[FOLDER_VARIABLE])
    name = sha256(str(python).encode()).hexdigest()[:8]
    address, log = str(folder / name), folder / f"{name}.log"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not log.exists():
            _start_server(folder, address, log, str(python))
    return [*_client(address, str(python)), *map(str, arguments)]


def _start_server(folder: Path, address: str, log: Path, python: str) -> None:
    _write_python(Path(f"{address}.bin", "python"), address, python)
    archive = folder / ARCHIVE_KEY
    if not archive.exists():
        archive.write_bytes(make_archive(read_library(REPLICA_PACKAGES)))
    environment = {**_at_start, **_IMPORTS, "PYTHONPATH": str(archive)}
    environment[NAMES_VARIABLE] = " ".join(environment)
    # The server inherits the socket, so that a client can connect at once. It is no child of this process, which may
    # kill its children after a test.
    with closing(socket.socket(socket.AF_UNIX)) as listener, log.open("wb") as output:
        listener.bind(address)
        listener.listen(100)
        owner = os.environ[FOLDER_VARIABLE + "_OWNER"]
        words = [python, str(PROGRAMS / "server.py"), str(listener.fileno()), owner, *IMPORTED]
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", *words],
            check=True,
            env=environment,
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _write_python(script: Path, address: str, python: str) -> None:
    """Write the Python of forks: a script that has replicas, ranks and steps forked, and runs all else itself."""
    patterns = " | ".join(["*/ephemeral_component.py*", *(f'*"-m {module}"*' for module in _FORKED)])
    shutil.rmtree(script.parent, ignore_errors=True)  # An earlier start may have failed.
    script.parent.mkdir()
    script.write_text(
        f'#!/bin/sh\ncase "$*" in {patterns}) exec {shlex.join(_client(address, python))} "$@" ;; esac\n'
        f'exec {shlex.quote(python)} "$@"\n'
    )
    script.chmod(0o700)
    script.with_name("python3").symlink_to(script.name)
    for program in Path(python).parent.iterdir():  # Such as rclone, which the library looks for beside its Python.
        if not program.name.startswith("python"):
            script.with_name(program.name).symlink_to(program)


def _client(address: str, python: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(PROGRAMS / "client.py"), address, python]
