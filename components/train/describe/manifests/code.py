"""The code of a job: its mount, and the check by which each container makes sure that it is the step's code. Pure.

Whoever may create and delete ConfigMaps can replace the job's one. The pods have the keys of the object store, so each
container checks the mounted code, copies it, and runs the copy. The expected hash is in the job's own object.
"""

from base64 import b64decode
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from zipfile import BadZipFile
from zlib import error as ZlibError

from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.library.archive import ARCHIVE_KEY, read_archive
from kfp_distributed.library.content import content_hash

JOB_KEY = "job.json"
CODE_SUFFIX = "-code"

MOUNT = "/kfp-distributed/code"
"""Mount path of the ConfigMap. Nothing is imported from it."""

CHECKED = "/kfp-distributed/checked"
"""Folder of the pod with the checked copy of the code."""

# `kubectl exec` reaches a worker as soon as its container runs, which may be before the container has copied the code.
_AWAIT_COPY = f'until [ -e {CHECKED}/{JOB_KEY} ]; do sleep 1; done; exec "$@"'


def checked(job: TrainingJob, settings: ClusterSettings, command: Sequence[str], message_path: str) -> list[str]:
    """Return the command that checks and copies the code of a job, and then runs a command.

    If the code is not the step's, it exits with code 1, a permanent failure, and runs nothing.

    Args:
        job: The job.
        settings: Settings of the cluster.
        command: Command to run after the check.
        message_path: File of the container's termination message, which gets the reason.
    """
    content = content_hash({**settings.library, JOB_KEY: job.description.to_json().encode()})
    arguments = (job.name + CODE_SUFFIX, content, MOUNT, CHECKED, message_path)
    # Isolated: the variables and packages of the task are not needed for the check.
    return ["python3", "-I", "-c", _check(), *arguments, *command]


def after_copy(command: Sequence[str]) -> list[str]:
    """Return the command that another pod starts in a container by `kubectl exec`: it waits for the checked code."""
    return ["sh", "-c", _AWAIT_COPY, "sh", *command]


def differing_keys(part: Object, existing: Object) -> list[str]:
    """Return the keys whose content differs between a ConfigMap of this library and an existing one, sorted.

    Archives with equal files are equal: another version of zlib compresses them to other bytes.
    """
    own, other = _content(part), _content(existing)
    return sorted(key for key in own.keys() | other.keys() if own.get(key) != other.get(key))


def _content(config_map: Object) -> dict[str, object]:
    binary = config_map.get("binaryData") or {}
    return {**(config_map.get("data") or {}), **{key: _unpacked(key, text) for key, text in binary.items()}}


def _unpacked(key: str, text: str) -> object:
    try:
        return read_archive(b64decode(text)) if key == ARCHIVE_KEY else text
    except (ValueError, OSError, EOFError, RuntimeError, BadZipFile, ZlibError):
        return text


@cache
def _check() -> str:
    return (files("kfp_distributed.library") / "code_check.py").read_text(encoding="utf-8")
