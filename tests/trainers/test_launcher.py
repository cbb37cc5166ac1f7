"""The program that runs a command which is not a rank itself."""

import os
import subprocess
import sys

import pytest

from kfp_distributed.trainers.runtime.heartbeat import LOST_SECONDS_VARIABLE
from kfp_distributed.trainers.runtime.job import JOB_VARIABLE, JobDescription


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
    command = [sys.executable, "-m", "kfp_distributed.trainers.runtime.launcher", *words, "sh", "-c", script]
    assert subprocess.run(command, env={**os.environ, **limit}, timeout=60).returncode == code
