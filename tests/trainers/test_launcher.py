"""The program that runs a command which is not a rank itself."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from kfp_distributed.storage import open_store
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest
from kfp_distributed.trainers.runtime.job_description import (
    GRACE_VARIABLE,
    JOB_VARIABLE,
    LOST_SECONDS_VARIABLE,
    JobDescription,
)


@pytest.mark.takes(3)
@pytest.mark.parametrize(
    ("words", "script", "seconds", "code"),
    [
        ([], "exit 3", None, 3),
        ([], "kill -9 $$", None, 137),
        ([], "kill -15 $$", None, 143),
        (["--idle"], "kill -15 $$", None, 0),
        (["--idle"], "exit 3", None, 3),
        # A launcher that ends because the train step is lost must not be restarted.
        ([], "trap 'exit 143' TERM; while :; do sleep 0.1; done", "2", 0),
    ],
)
def test_exit_code_of_a_command(tmp_path, words, script, seconds, code):
    job = tmp_path / "job.json"
    description = JobDescription("job", {}, {}, "", "", "", "", "", "", (), heartbeat_uri=str(tmp_path / "heartbeat"))
    job.write_text(description.to_json())
    limit = {LOST_SECONDS_VARIABLE: seconds, JOB_VARIABLE: str(job)} if seconds else {}
    shell = ["sh", "-c", f"echo error >&2; echo output; {script}"]
    command = [sys.executable, "-m", "kfp_distributed.trainers.runtime.launcher", *words, *shell]
    end = subprocess.run(command, env={**os.environ, **limit}, timeout=300, capture_output=True, text=True)
    # Output and errors are one stream, whose lines keep their order.
    assert (end.returncode, end.stderr) == (code, "")
    assert end.stdout.startswith("error\noutput\n")


@pytest.mark.takes(5)
def test_a_worker_whose_step_is_lost_ends_after_its_launcher(tmp_path):
    """The launcher reads the heartbeat up to an interval later, and would fail without the worker."""
    job, ended = tmp_path / "job.json", {}
    description = JobDescription("job", {}, {}, "", "", "", "", "", "", (), heartbeat_uri=str(tmp_path / "heartbeat"))
    job.write_text(description.to_json())
    environment = {**os.environ, LOST_SECONDS_VARIABLE: "2", JOB_VARIABLE: str(job), GRACE_VARIABLE: "8"}
    # Each replica notes the time of its end, because this process may look late.
    note_end = ["sh", "-c", 'end=$1; shift; "$@"; code=$?; date +%s%N > "$end"; exit $code', "sh"]
    command = [sys.executable, "-m", "kfp_distributed.trainers.runtime.launcher"]
    replicas = {
        name: subprocess.Popen([*note_end, tmp_path / name, *command, *words, "sleep", "600"], env=environment)
        for name, words in (("worker", ["--idle"]), ("launcher", []))
    }
    for name in ("launcher", "worker"):
        assert replicas[name].wait(120) == 0
        ended[name] = int((tmp_path / name).read_text())
    assert ended["worker"] > ended["launcher"]


@pytest.mark.parametrize(("parameters", "output"), [({}, "nothing is trained again"), ({"epochs": 2}, "ran")])
def test_a_job_that_has_saved_its_model_starts_no_ranks(tmp_path, parameters, output):
    model = open_store(str(tmp_path / "model"))
    model.write("weights", b"1")
    trained = JobDescription("job", {}, {}, "", "", model.uri, "", "", "", ())
    files = tuple(describe_folder(tmp_path / "model"))
    manifest = ModelManifest("files", files, {}, "job", (), {}, (), trained.request)
    model.write(MODEL_MANIFEST, manifest.to_json().encode())
    job = tmp_path / "job.json"
    job.write_text(replace(trained, parameters=parameters).to_json())
    command = [sys.executable, "-m", "kfp_distributed.trainers.runtime.unless_trained", "echo", "ran"]
    environment = {**os.environ, JOB_VARIABLE: str(job)}
    end = subprocess.run(command, env=environment, timeout=300, capture_output=True, text=True)
    assert end.returncode == 0, end.stderr
    assert end.stdout.rstrip().endswith(output)
