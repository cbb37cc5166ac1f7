"""What a local run leaves in the process that it ran in, whichever way it ends."""

import asyncio
import builtins
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import psutil
import pytest
from kfp import dsl, local
from kfp.local.config import LocalExecutionConfig
from process_hygiene import is_alive, started
from train.programs.jobs import wait_until

from kfp_distributed.components.deploy_model.deployment_request import DeploymentRequest
from kfp_distributed.components.deploy_model.local_deployment import SERVERS_VARIABLE, NotServed, deploy_locally
from kfp_distributed.pipelines.local_run import local_run


@dsl.component(install_kfp_package=False)
def add(a: int, b: int) -> int:
    return a + b


@pytest.mark.parametrize("initialised", [False, True])
def test_kfp_local_and_the_environment_are_as_before(tmp_path, monkeypatch, initialised):
    monkeypatch.setattr(LocalExecutionConfig, "instance", None)
    if initialised:
        local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "own"))
    configuration, environment = LocalExecutionConfig.instance, dict(os.environ)
    with local_run(tmp_path / "run", embedded_store=False):
        assert LocalExecutionConfig.instance.pipeline_root == str(tmp_path / "run" / "artifacts")
        scratch = Path(os.environ["TMPDIR"])
    assert LocalExecutionConfig.instance is configuration
    assert dict(os.environ) == environment
    assert not scratch.exists()
    if not initialised:
        with pytest.raises(RuntimeError, match="Local environment not initialized"):
            add(a=1, b=2)


PROGRAM = """
import os, sys, time
from kfp.local.config import LocalExecutionConfig
from kfp_distributed.pipelines.local_run import local_run
try:
    with local_run(sys.argv[1]):
        print(os.environ["TMPDIR"], flush=True)
        time.sleep(60)
finally:
    print(LocalExecutionConfig.instance, "AWS_SECRET_ACCESS_KEY" in os.environ, flush=True)
"""


@pytest.mark.takes(4)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_neither_a_folder_nor_kfp_local_initialised(tmp_path, number):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "AWS_SECRET_ACCESS_KEY"},
    )
    scratch = Path(process.stdout.readline().strip())
    assert scratch.is_dir()
    process.send_signal(number)
    output = process.stdout.read()
    assert (process.wait(120), output, scratch.exists()) == (128 + number, "None False\n", False)


SWEEP = """
import sys
from kfp import dsl
from kfp_distributed.pipelines.local_run import local_run

@dsl.component(install_kfp_package=sys.argv[3] == "installs")
def wait(folder: str, item: int):
    import os, pathlib, time
    pathlib.Path(folder, str(os.getpid())).touch()
    time.sleep(600)

@dsl.pipeline
def sweep(folder: str):
    with dsl.ParallelFor(list(range(40))) as item:
        wait(folder=folder, item=item)

with local_run(sys.argv[1], embedded_store=False, progress=True):
    sweep(folder=sys.argv[2])
"""


@pytest.mark.takes(14)
@pytest.mark.parametrize(
    ("number", "packages", "running"),
    # kfp runs two steps of a ParallelFor at a time, and one where steps install packages: the other waits.
    [(signal.SIGINT, "installs", 1), (signal.SIGINT, "has", 2), (signal.SIGTERM, "has", 2)],
)
def test_a_signal_ends_the_steps_of_a_parallel_for_and_no_other_begins(tmp_path, number, packages, running):
    """A notebook sends SIGINT to its kernel alone, so the steps do not get it."""
    program, begun = tmp_path / "sweep.py", tmp_path / "begun"
    program.write_text(SWEEP)
    begun.mkdir()
    argv = [sys.executable, program, tmp_path / "run", begun, packages]
    with started(argv, start_new_session=True, stdout=subprocess.PIPE) as process:
        wait_until(lambda: len(list(begun.iterdir())) == running or process.poll() is not None)
        assert len(list(begun.iterdir())) == running, "kfp does not run these steps side by side, or the run ended"
        steps = [psutil.Process(int(path.name)) for path in begun.iterdir()]
        process.send_signal(number)
        printed = process.stdout.read()
        assert process.wait(120) in (128 + number, -number)
    assert len(list(begun.iterdir())) == running
    assert not [step for step in steps if is_alive(step)]
    assert "stopped after" in printed
    assert "failed" not in printed


@contextmanager
def handled(number: int, handler: Any) -> Iterator[None]:
    """Let the program handle a signal."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def note(number: int, frame: object) -> None:
    """Handle a signal without an end of anything."""


def give_up(number: int, frame: object) -> None:
    """Handle a signal as a program that has its own error for it."""
    raise TimeoutError


@pytest.mark.parametrize(
    ("handler", "error"), [(signal.default_int_handler, KeyboardInterrupt), (give_up, TimeoutError)]
)
def test_after_an_interrupt_that_the_program_catches_no_step_begins(tmp_path, handler, error):
    with handled(signal.SIGINT, handler), local_run(tmp_path / "first", embedded_store=False):
        with pytest.raises(error):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(RuntimeError, match="this local_run was interrupted"):
            add(a=1, b=2)
    with local_run(tmp_path / "second", embedded_store=False):
        assert add(a=1, b=2).output == 3


def test_after_an_interrupt_in_asyncio_no_step_begins(tmp_path):
    """The handler of asyncio cancels the main task, which raises nothing before it awaits."""

    async def main():
        with local_run(tmp_path, embedded_store=False):
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(RuntimeError, match="this local_run was interrupted"):
                add(a=1, b=2)

    with handled(signal.SIGINT, signal.default_int_handler), pytest.raises(KeyboardInterrupt):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("number", "handler"),
    [(signal.SIGINT, note), (signal.SIGINT, signal.SIG_IGN), (signal.SIGHUP, signal.SIG_IGN)],
    ids=["noted", "ignored", "nohup"],
)
def test_a_signal_that_the_program_notes_or_ignores_is_no_interrupt(tmp_path, number, handler):
    with handled(number, handler), local_run(tmp_path, embedded_store=False):
        signal.raise_signal(number)
        assert add(a=1, b=2).output == 3
        signal.raise_signal(number)
        assert add(a=2, b=2).output == 4


def test_a_local_run_in_another_thread_handles_no_signals(tmp_path):
    runs = []

    def run():
        with local_run(tmp_path, embedded_store=False) as made:
            runs.append(made.artifacts)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    assert runs == [tmp_path / "artifacts"]


def state() -> tuple:
    return LocalExecutionConfig.instance, dict(os.environ), signal.getsignal(signal.SIGTERM)


def refusal(folder) -> str:
    with pytest.raises(RuntimeError) as caught, local_run(folder, embedded_store=False):
        pytest.fail("it started")
    return str(caught.value)


@pytest.mark.takes(3)
def test_a_second_local_run_is_refused_and_the_first_is_not_disturbed(tmp_path):
    texts = []
    with local_run(tmp_path / "first", embedded_store=False):
        before = state()
        thread = Thread(target=lambda: texts.append(refusal(tmp_path / "second")))
        thread.start()
        thread.join()
        texts.append(refusal(tmp_path / "nested"))
        assert state() == before
        assert add(a=1, b=2).output == 3
    assert len(texts) == 2
    assert all(text.startswith("local_run cannot start: another local_run of this process") for text in texts)
    assert [path.name for path in tmp_path.iterdir()] == ["first"]
    with local_run(tmp_path / "third", embedded_store=False):
        assert add(a=2, b=2).output == 4


def test_a_local_run_can_start_after_one_that_failed(tmp_path):
    def failed_run():
        with local_run(tmp_path, embedded_store=False):
            raise KeyError("a failure of the pipeline")

    with pytest.raises(KeyError):
        failed_run()
    (tmp_path / "file").touch()
    with pytest.raises(OSError), local_run(tmp_path / "file"):  # noqa: PT011  (a folder cannot be made)
        pass
    with local_run(tmp_path, embedded_store=False) as run:
        assert run.artifacts == tmp_path / "artifacts"


@dsl.component(install_kfp_package=False)
def score() -> NamedTuple("Scores", [("accuracy", float)]):
    return (0.95,)


@dsl.component(install_kfp_package=False)
def export() -> None:
    print("exported")


@dsl.pipeline
def with_default_none(first: str = "a", second: str = None):  # noqa: RUF013  (kfp takes no union)
    export()


def test_an_input_without_a_value_is_named(tmp_path):
    with pytest.raises(ValueError, match="the input 'second' of the pipeline has the default None"):  # noqa: SIM117
        with local_run(tmp_path, embedded_store=False):
            with_default_none()
    with pytest.raises(ValueError, match=r"^another$"), local_run(tmp_path, embedded_store=False):
        raise ValueError("another")


@dsl.pipeline
def score_and_export():
    with dsl.ParallelFor([1]):
        scored = score()
        with dsl.If(scored.outputs["accuracy"] >= 0.9):
            export()


@dsl.component(install_kfp_package=False)
def double(a: int) -> int:
    return 2 * a


@dsl.pipeline
def double_side_by_side():
    with dsl.ParallelFor([1, 2, 3]) as item:
        double(a=item)


@pytest.mark.takes(4)
def test_steps_side_by_side_leave_print_and_logging_as_before(tmp_path):
    logger = logging.getLogger()
    before = builtins.print, list(logger.handlers), logger.level
    with local_run(tmp_path, embedded_store=False, progress=True) as run:
        double_side_by_side()
    assert (builtins.print, list(logger.handlers), logger.level) == before
    log = run.log.read_text()
    assert len(re.findall(r"Task 'double' finished with status SUCCESS", log)) == 3
    assert set(re.findall(r"^ *(?=\[KFP Executor)", log, re.MULTILINE)) == {"    "}


@dsl.component(install_kfp_package=False)
def given(text: str) -> str:
    return text


def test_an_input_keeps_the_word_python3(tmp_path):
    with local_run(tmp_path, embedded_store=False):
        assert given(text="about python3.11").output == "about python3.11"


def test_a_condition_that_kfp_cannot_evaluate_on_this_machine_is_explained(tmp_path, capsys):
    """kfp 2.17 takes it as False. Where a later kfp evaluates it, the explanation can go."""
    with local_run(tmp_path, embedded_store=False):
        score_and_export()
    printed = capsys.readouterr().out
    assert "exported\n" not in printed
    assert "kfp.local cannot read the output score-accuracy and evaluates its dsl.If as False" in printed


def test_a_run_in_a_folder_with_a_long_path_takes_requests(tmp_path, monkeypatch):
    scratch = tmp_path / ("long" * 30)
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv(SERVERS_VARIABLE, "the socket of an outer run")
    with local_run(tmp_path / "run", embedded_store=False):
        assert os.environ[SERVERS_VARIABLE].startswith(f"{scratch}/")
        with pytest.raises(NotServed, match=r"^the model server does not answer after 0.01 s"):
            deploy_locally(DeploymentRequest("flowers", timeout_seconds=0.01), "s3://models/flowers/1")
    assert os.environ[SERVERS_VARIABLE] == "the socket of an outer run"
