"""Lets tests start replicas and steps without importing their frameworks anew: a server for each Python forks them.

A plugin of pytest. A test that asks for real command lines is marked `command_line`.
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
_TRAINERS = ("keras_classifier", "keras_horovod", "torch_classifier", "torch_horovod")
_STEPS = ("fingerprint_source", "prepare_data", "train", "evaluate", "export_model", "deploy_model", "predict")
_IMPORTED = (
    ENTRY,
    "kfp.dsl.executor_main",
    *(f"kfp_distributed.trainers.{name}" for name in _TRAINERS),
    *(f"kfp_distributed.components.{name}.step" for name in _STEPS),
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.tensor.parallel",
    "transformers.models.bert.modeling_bert",
)
"""What tests train with, too. A Python has some of them."""
_IMPORTS = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "_KFP_RUNTIME": "true", "OMP_NUM_THREADS": "1"}
"""Variables that modules read when they are imported. Replicas and steps set them before."""
_HERE = Path(__file__).parent
_start, _environment = ProcessGroup.start, subprocess_task_handler.environment
NAMES_VARIABLE = "TESTS_FORKED_REPLICAS_NAMES"
"""Variable with the names of the others, for the server. A Python that is a script sets more of them."""
PYTHON_VARIABLE = "TESTS_FORKED_REPLICAS_PYTHON"
"""Variable with the Python that a forked step starts its replicas with, for the server."""
_FORKS = "TESTS_FORKED_REPLICAS_FORK"
"""Variable that is set while a test may fork."""
_FOLDER = "TESTS_FORKED_REPLICAS"
"""Variable with the folder of the servers' sockets. The workers of a run share them."""


def pytest_configure(config: pytest.Config) -> None:
    """Create the folder of the servers before the workers start."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="replicas-")
        config.add_cleanup(folder.cleanup)
        os.environ[_FOLDER] = folder.name
        os.environ[_FOLDER + "_OWNER"] = str(os.getpid())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fork the replicas and steps of a test, those of its fixtures included, unless it is marked."""
    with pytest.MonkeyPatch.context() as patch:
        if not any(map(item.get_closest_marker, ("command_line", "cluster"))):
            patch.setenv(_FORKS, "true")
            patch.setattr(ProcessGroup, "start", _start_forked)
            patch.setattr(subprocess_task_handler, "environment", _forking_environment)
        return (yield)


def _start_forked(group: ProcessGroup, name: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a child process as ProcessGroup.start does. A replica in its command line is forked."""
    words = list(argv)
    for index in range(1, len(words) - 1):
        python, environment = words[index - 1], options.get("env") or os.environ
        if words[index : index + 2] == ["-m", ENTRY] and _can_be_forked(python, environment.get("PATH")):
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
        yield str(_script(forked(python), python)) if python == sys.executable else python


def _script(client: Sequence[str], python: str) -> Path:
    """Write a Python that has modules of replicas and steps forked. In these forks, it is `sys.executable`."""
    script = Path(f"{client[-2]}.bin", "python")
    if not script.exists():
        script.parent.mkdir(exist_ok=True)
        in_fork = f'{PYTHON_VARIABLE}={shlex.quote(str(script))} exec {shlex.join(client)} "$@"'
        written = script.with_name(f"{os.getpid()}")
        written.write_text(
            f'#!/bin/sh\ncase "$*" in *"-m {ENTRY}" | *"-m kfp.dsl.executor_main "*) {in_fork} ;; esac\n'
            f'exec {shlex.quote(python)} "$@"\n'
        )
        written.chmod(0o700)
        written.rename(script)
    return script


def forked(python: str | Path, *arguments: str | Path) -> list[str]:
    """Return the command line that has a Python forked with these arguments. It starts the server if there is none.

    In a test that is marked `command_line`, it is the Python's own.

    Args:
        python: The Python.
        arguments: `-m` and a module, `-c` and code, or a path, and the arguments of the program.
    """
    if _FORKS not in os.environ:
        return [str(python), *map(str, arguments)]
    folder = Path(os.environ[_FOLDER])
    name = sha256(str(python).encode()).hexdigest()[:8]
    address, log = str(folder / name), folder / f"{name}.log"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not log.exists():
            _start_server(folder, address, log, str(python))
    return [sys.executable, "-I", "-S", str(_HERE / "client.py"), address, str(python), *map(str, arguments)]


def _start_server(folder: Path, address: str, log: Path, python: str) -> None:
    archive = folder / ARCHIVE_KEY
    if not archive.exists():
        archive.write_bytes(make_archive(read_library(REPLICA_PACKAGES)))
    environment = {**os.environ, **_IMPORTS, "PYTHONPATH": str(archive)}
    environment[NAMES_VARIABLE] = " ".join(environment)
    # The server inherits the socket, so that a client can connect at once. It is no child of this process, which may
    # kill its children after a test.
    with closing(socket.socket(socket.AF_UNIX)) as listener, log.open("wb") as output:
        listener.bind(address)
        listener.listen(100)
        words = [python, str(_HERE / "server.py"), str(listener.fileno()), os.environ[_FOLDER + "_OWNER"], *_IMPORTED]
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
