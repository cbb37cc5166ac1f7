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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from kfp.local import subprocess_task_handler

from kfp_distributed.library.archive import ARCHIVE_KEY, make_archive
from kfp_distributed.library.content import REPLICA_PACKAGES, read_library
from kfp_distributed.processes import ProcessGroup
from kfp_distributed.trainers.runtime.job_description import JOB_VARIABLE, JobDescription

ENTRY = "kfp_distributed.trainers.runtime.entry"
_TRAINERS = ("keras_classifier", "keras_horovod", "torch_classifier", "torch_horovod")
_STEPS = ("fingerprint_source", "prepare_data", "train", "evaluate", "export_model", "deploy_model", "predict")
_REPLICA = (ENTRY, *(f"kfp_distributed.trainers.{name}" for name in _TRAINERS))
_STEP = ("kfp.dsl.executor_main", *(f"kfp_distributed.components.{name}.step" for name in _STEPS), "tf_keras")
_IMPORTS = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "_KFP_RUNTIME": "true", "OMP_NUM_THREADS": "1"}
"""Variables that modules read when they are imported. Replicas and steps set them before."""
_HERE = Path(__file__).parent
_start, _environment = ProcessGroup.start, subprocess_task_handler.environment
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
            patch.setattr(ProcessGroup, "start", _start_forked)
            patch.setattr(subprocess_task_handler, "environment", _forking_environment)
        return (yield)


def _start_forked(group: ProcessGroup, name: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a child process as ProcessGroup.start does. A replica in its command line is forked."""
    words = list(argv)
    for index in range(1, len(words) - 1):
        python = words[index - 1]
        if words[index : index + 2] == ["-m", ENTRY] and _can_be_forked(python, options.get("env") or os.environ):
            words[index - 1 : index] = _client(python, _REPLICA)
            break
    return _start(group, name, words, **options)


def _can_be_forked(python: str, environment: Mapping[str, str]) -> bool:
    """Return whether a replica runs its program itself, and no script starts its Python."""
    job = Path(environment.get(JOB_VARIABLE, ""))
    program = shutil.which(python, path=environment.get("PATH"))
    if not job.is_file() or not program or "command" in JobDescription.from_json(job.read_text()).program:
        return False
    with Path(program).open("rb") as file:
        return file.read(2) != b"#!"


@contextmanager
def _forking_environment(*arguments: Any, **options: Any) -> Iterator[str]:
    """Yield the Python of a step as kfp.local does, or a script that has the step forked."""
    with _environment(*arguments, **options) as python:
        client = _client(python, _STEP)
        script = Path(f"{client[-2]}.sh")
        script.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n')
        script.chmod(0o700)
        yield str(script) if python == sys.executable else python


def _client(python: str, modules: Sequence[str]) -> list[str]:
    """Return the command that has a program of a Python forked. It starts the server if there is none."""
    folder = Path(os.environ[_FOLDER])
    name = sha256(repr((python, modules)).encode()).hexdigest()[:8]
    address, log = str(folder / name), folder / f"{name}.log"
    client = [sys.executable, "-I", "-S", str(_HERE / "client.py"), address, python]
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if log.exists():
            return client
        archive = folder / ARCHIVE_KEY
        if not archive.exists():
            archive.write_bytes(make_archive(read_library(REPLICA_PACKAGES)))
        environment = {**os.environ, **_IMPORTS, "PYTHONPATH": str(archive)}
        # The server inherits the socket, so that a client can connect at once. It is no child of this process, which
        # may kill its children after a test.
        with closing(socket.socket(socket.AF_UNIX)) as listener, log.open("wb") as output:
            listener.bind(address)
            listener.listen(100)
            words = [python, str(_HERE / "server.py"), str(listener.fileno()), os.environ[_FOLDER + "_OWNER"]]
            words += modules
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
    return client
