"""Whether a replica notices that its train step is lost."""

import os
import subprocess
import sys
import threading
import time

import pytest

from kfp_distributed.trainers.launcher import LOST_SECONDS_VARIABLE, end_when_lost


def test_it_ends_when_no_sign_comes(tmp_path):
    ended = threading.Event()
    end_when_lost(4.0, ended.set, tmp_path / "alive")
    assert not ended.wait(0.5)
    assert ended.wait(20)


def test_signs_of_life_keep_it_going(tmp_path):
    ended, file = threading.Event(), tmp_path / "alive"
    file.write_text("0")
    end_when_lost(8.0, ended.set, file)
    for number in range(20):
        file.write_text(str(number))
        assert not ended.wait(0.5)
    assert ended.wait(20)


def test_one_that_is_started_again_does_not_wait_anew(tmp_path):
    file = tmp_path / "alive"
    file.write_text(str(int(time.time()) - 100))
    ended, begun = threading.Event(), time.monotonic()
    end_when_lost(16.0, ended.set, file)
    # The step's clock may be late: what it says is not enough to end by.
    assert not ended.wait(4)
    assert ended.wait(20)
    assert time.monotonic() - begun < 16


def test_the_first_content_says_nothing(tmp_path):
    file = tmp_path / "alive"
    file.write_text("0")
    ended = threading.Event()
    end_when_lost(60.0, ended.set, file)
    assert not ended.wait(0.5)


@pytest.mark.parametrize(
    ("words", "script", "seconds", "code"),
    [
        ([], "exit 3", None, 3),
        ([], "kill -9 $$", None, 137),
        ([], "kill -15 $$", None, 143),
        (["--idle"], "kill -15 $$", None, 0),
        (["--idle"], "exit 3", None, 3),
        # What ends with the train step has not failed: it would be started again.
        ([], "trap 'exit 143' TERM; while :; do sleep 0.1; done", "2", 0),
    ],
)
def test_the_exit_code_of_a_command(words, script, seconds, code):
    limit = {LOST_SECONDS_VARIABLE: seconds} if seconds else {}
    command = [sys.executable, "-m", "kfp_distributed.trainers.launcher", *words, "sh", "-c", script]
    assert subprocess.run(command, env={**os.environ, **limit}, timeout=60).returncode == code
