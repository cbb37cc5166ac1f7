"""The compiled train step with one `checkpoint_uri` for several runs, started as a KFP backend starts it."""

import re
from pathlib import Path

import compiled
import pytest
from kfp import compiler
from step_lines import brief_lines

from kfp_distributed.components import steps

pytestmark = pytest.mark.takes(20)

RUN_A = "4f5b0b1c-5a1c-4a6e-9d4c-6c0f2f7f3a11"
RUN_B = "c1d2e3f4-0000-4111-8222-333344445555"

# Fails once after the epoch `stops_after`, and then creates the file `stopped`.
FIT = """
def fit(model_dir, checkpoint_dir, metrics_dir, epochs: int = 3, stops_after: int = 0, stopped: str = ""):
    import json, time
    from pathlib import Path
    state, metrics = Path(checkpoint_dir, "state"), Path(metrics_dir, "training.json")
    begun = int(state.read_text()) if state.exists() else 0
    history = json.loads(metrics.read_text())["epochs"] if metrics.exists() else []
    print(f"begins after epoch {begun}")
    for epoch in range(begun + 1, epochs + 1):
        history.append({"epoch": epoch, "loss": 1 / epoch})
        metrics.write_text(json.dumps({"replica": "worker-0", "epochs": history}))
        state.write_text(str(epoch))
        print(f"epoch {epoch}/{epochs}")
        if epoch == stops_after and not Path(stopped).exists():
            Path(stopped).touch()
            while not any(
                copy.read_text() == str(epoch) and copy.parent.with_suffix(".json").exists()
                for copy in Path(stopped).parent.glob("stored/**/state")
            ):
                time.sleep(0.1)
            time.sleep(1)  # The metrics are stored after the checkpoint.
            raise RuntimeError("a failure")
    Path(model_dir, "weights").write_text(str(epochs))
"""


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("specs")
    compiler.Compiler().compile(steps().train, str(folder / "train.yaml"))
    return folder


@pytest.fixture
def train(specs, data, tmp_path):
    """A function that runs the step of a task, and returns its exit code and the lines of its log."""

    def run(run_id, task="train", resume_from="", **parameters):
        command = compiled.step_command(
            "train",
            compiled.Run(str(tmp_path / "root"), run_id),
            {
                "train_specification": {"function": "fit", "source": FIT},
                "train_parameters": {"stopped": str(tmp_path / "stopped"), **parameters},
                "checkpoint_uri": str(tmp_path / "stored"),
                **({"resume_from": resume_from} if resume_from else {}),
                "runner": "local",
            },
            {"train_dataset": data},
            task,
            specs=specs,
        )
        result = compiled.run_step_command(command, tmp_path)
        return result.returncode, brief_lines(result.stdout)

    return run


def trained(lines):
    """Return the epoch from which a training has resumed, and its epochs. The cause of a failure repeats lines."""
    text = "\n".join(dict.fromkeys(lines))
    (begun,) = re.findall(r"begins after epoch (\d+)$", text, re.MULTILINE)
    return int(begun), [int(epoch) for epoch in re.findall(r"\] epoch (\d+)/", text)]


def stored_in(lines):
    (folder,) = re.findall("^checkpoints are stored in (.*)$", "\n".join(lines), re.MULTILINE)
    return folder


def test_each_run_and_task_has_its_own_training_and_a_retry_resumes(train, tmp_path):
    code, first = train(RUN_A)
    assert (code, trained(first)) == (0, (0, [1, 2, 3])), first

    code, other_run = train(RUN_B)
    assert (code, trained(other_run)) == (0, (0, [1, 2, 3])), other_run

    code, failed = train(RUN_A, "train-2", stops_after=2)
    assert (code, trained(failed)) == (1, (0, [1, 2])), failed
    code, retried = train(RUN_A, "train-2", stops_after=2)
    assert (code, trained(retried)) == (0, (2, [3])), retried

    folders = [stored_in(lines) for lines in (first, other_run, retried)]
    assert sorted(Path(folder) for folder in folders) == sorted((tmp_path / "stored").iterdir())
    pages = {path.parts[-4]: path.read_text() for path in (tmp_path / "root").rglob("report") if "train" in path.parts}
    assert f"<title>train of run {RUN_A}</title>" in pages[RUN_A]
    assert f"<title>train of run {RUN_B}</title>" in pages[RUN_B]
    assert re.search('class="good">succeeded after ', pages[RUN_B])


def test_only_resume_from_resumes_the_training_of_another_run(train):
    _, first = train(RUN_A)

    code, longer = train(RUN_B, resume_from=stored_in(first), epochs=5)
    assert (code, trained(longer)) == (0, (3, [4, 5])), longer
    assert f"starts from checkpoint 00000001 of {stored_in(first)}" in longer
    assert stored_in(longer) != stored_in(first)
    metrics = Path(stored_in(longer), "metrics", "training.json").read_text()
    assert re.findall(r'"epoch": (\d)', metrics) == ["1", "2", "3", "4", "5"]

    # A retry resumes from its own checkpoints.
    code, retried = train(RUN_B, resume_from=stored_in(first), epochs=6)
    assert (code, trained(retried)) == (0, (5, [6])), retried


def test_a_folder_without_a_checkpoint_is_refused_before_anything_starts(train, tmp_path):
    (tmp_path / "empty").mkdir()
    code, lines = train(RUN_A, resume_from=str(tmp_path / "empty"))
    assert code == 1
    refusal = f"ValueError: resume_from = '{tmp_path}/empty': .*no complete checkpoint.*CHECKPOINT_URI/JOB"
    assert re.match(refusal, lines[-1]), lines
    assert not (tmp_path / "stored").exists()
