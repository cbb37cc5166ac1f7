"""Containers check the mounted code of a job, copy it, and run the copy. The commands are those of the manifests."""

import base64
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace

import pytest
from train.programs.jobs import make_job

from kfp_distributed.components.train.describe.manifests import code_config_map, differing_keys
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.code import CHECKED, MOUNT, after_copy, checked
from kfp_distributed.library.archive import make_archive, make_small_archive, read_archive

LIBRARY = {
    "kfp_distributed/runtime.py": b"print('the code of the step')\n",
    "sitecustomize.py": b"print('imported at the start of Python')\n",
}
SETTINGS = ClusterSettings("default", library=LIBRARY)
JOB = make_job(["unused"])
EVIL = {**LIBRARY, "kfp_distributed/runtime.py": b"print('the code of a stranger')\n"}
OUTPUT = "imported at the start of Python\nthe code of the step\n"


@pytest.fixture
def pod(tmp_path):
    return Pod(tmp_path)


class Pod:
    """The folders of a pod, and containers that run with these folders."""

    def __init__(self, folder):
        self.mount, self.checked, self.message = folder / "code", folder / "checked", folder / "message"
        self.mount.mkdir()
        self.checked.mkdir()
        self.mount_code(code_config_map(JOB, SETTINGS))

    def mount_code(self, config_map):
        for key, text in config_map["data"].items():
            (self.mount / key).write_text(text)
        for key, text in config_map["binaryData"].items():
            (self.mount / key).write_bytes(base64.b64decode(text))

    def here(self, words):
        paths = {MOUNT: str(self.mount), CHECKED: str(self.checked), "python3": sys.executable}
        return [paths.get(word, word.replace(CHECKED, str(self.checked))) for word in words]

    def run(self, command=("python3", "-m", "kfp_distributed.runtime"), timeout=120):
        words = self.here(checked(JOB, SETTINGS, command, str(self.message)))
        environment = {"PYTHONPATH": str(self.checked), "PATH": os.environ["PATH"]}
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=timeout, check=False)


def copies(pod):
    files = (file for file in pod.checked.rglob("*") if file.is_file() and file.suffix != ".pyc")
    return {str(file.relative_to(pod.checked)): file.read_bytes() for file in files}


def test_the_command_runs_from_the_checked_copy(pod):
    done = pod.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, OUTPUT, "")
    assert copies(pod) == {**LIBRARY, "job.json": JOB.description.to_json().encode()}
    assert not pod.message.exists()


def test_the_command_replaces_the_check_and_keeps_its_exit_code(pod):
    words = ["python3", "-S", "-c", "import os, sys; print(os.getppid(), sys.argv[1:]); sys.exit(137)", "a b", "$c"]
    done = pod.run(words)
    assert (done.returncode, done.stdout.partition(" ")[2]) == (137, "['a b', '$c']\n")
    assert int(done.stdout.partition(" ")[0]) == os.getpid()


def replaced(pod, archive=None, job=None):
    config_map = code_config_map(JOB, SETTINGS)
    if archive is not None:
        config_map["binaryData"]["library.zip"] = base64.b64encode(archive).decode()
    config_map["data"]["job.json"] = job or config_map["data"]["job.json"]
    pod.mount_code(config_map)


OTHER_JOB = replace(JOB.description, program={"command": ["curl"]}).to_json()


@pytest.mark.parametrize(
    ("archive", "job", "problem"),
    [
        (make_archive(EVIL), None, "was replaced: SHA-256 "),
        (make_archive({**LIBRARY, "kfp_distributed/more.py": b""}), None, "was replaced: SHA-256 "),
        (make_archive({name: LIBRARY[name] for name in sorted(LIBRARY)[:1]}), None, "was replaced: SHA-256 "),
        (make_archive(LIBRARY)[:-9], None, "could not be read: BadZipFile"),
        (b"", None, "could not be read: BadZipFile"),
        (None, OTHER_JOB, "was replaced: SHA-256 "),
    ],
    ids=["another file", "one more file", "one file less", "damaged", "empty", "another job"],
)
def test_nothing_of_replaced_code_is_run(pod, archive, job, problem):
    replaced(pod, archive, job)
    done = pod.run()
    # Codes from 1 to 127 are permanent failures for the step, for the operators and for the failure policy of a Job.
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"ConfigMap a-job-code {problem}")
    assert pod.message.read_text() == line
    assert copies(pod) == {}


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_files_that_are_compressed_together_are_the_same_code(pod, compression):
    (pod.mount / "library.zip").write_bytes(make_small_archive(LIBRARY, compression))
    assert pod.run().stdout == OUTPUT


def test_a_missing_file_is_a_failure_of_the_check(pod):
    (pod.mount / "library.zip").unlink()
    done = pod.run()
    assert (done.returncode, done.stdout, copies(pod)) == (1, "", {})
    assert "FileNotFoundError" in done.stderr


def test_code_that_is_replaced_after_the_check_does_not_count(pod):
    pod.run(["true"])
    replaced(pod, make_archive(EVIL))
    # As a rank does, which mpirun or horovodrun starts in the container of a worker.
    words = pod.here(after_copy(["python3", "-m", "kfp_distributed.runtime"]))
    assert subprocess.check_output(words, env={"PYTHONPATH": str(pod.checked)}, text=True) == OUTPUT


def test_a_container_that_starts_again_checks_again(pod):
    assert pod.run().returncode == 0
    assert pod.run().stdout == OUTPUT
    replaced(pod, make_archive(EVIL))
    done = pod.run()
    assert (done.returncode, done.stdout) == (1, "")


def test_a_rank_waits_for_the_copy_of_its_container(pod):
    words = pod.here(after_copy(["python3", "-m", "kfp_distributed.runtime"]))
    rank = subprocess.Popen(words, env={"PYTHONPATH": str(pod.checked), "PATH": os.environ["PATH"]}, stdout=-1)
    with pytest.raises(subprocess.TimeoutExpired):
        rank.wait(0.3)
    pod.run(["true"])
    assert rank.communicate(timeout=120)[0].decode() == OUTPUT


def test_differing_keys_are_those_with_another_content():
    own = code_config_map(JOB, SETTINGS)
    assert differing_keys(own, json.loads(json.dumps(own))) == []
    # Another version of zlib.
    archive = make_archive(read_archive(make_archive(LIBRARY)), compression=0)
    assert archive != make_archive(LIBRARY)
    stored = {**own, "binaryData": {"library.zip": base64.b64encode(archive).decode()}}
    assert differing_keys(own, stored) == []
    evil = {**own, "binaryData": {"library.zip": base64.b64encode(make_archive(EVIL)).decode()}}
    assert differing_keys(own, evil) == ["library.zip"]
    assert differing_keys(own, {**own, "binaryData": {"library.zip": "RVZJTA=="}}) == ["library.zip"]
    assert differing_keys(own, {**own, "data": {"job.json": OTHER_JOB, "more": ""}}) == ["job.json", "more"]
    assert differing_keys(own, {"kind": "ConfigMap"}) == ["job.json", "library.zip"]
