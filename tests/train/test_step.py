"""The `train` step: its artifacts, its log and its report."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from pages import Page
from step_lines import brief_lines
from train.test_launch import FIT, function

from kfp_distributed.components.train import recorded_job
from kfp_distributed.components.train import step as step_module
from kfp_distributed.components.train.run.training_request.request import job_name
from kfp_distributed.components.train.step import run_step
from kfp_distributed.components.train.tell.log_format import parse_line
from kfp_distributed.components.train.tell.stored_log import read_log
from kfp_distributed.components.train.tell.training_summary import TrainingSummary
from kfp_distributed.storage import open_store

pytestmark = pytest.mark.takes(14)


@dataclass
class Artifact:
    """The attributes of a KFP artifact that the step uses."""

    path: str
    uri: str
    metadata: dict
    logged: dict

    def log_metric(self, name, value):
        self.logged[name] = value


TASK_FOLDER = "s3://b/digits/4f5b0b1c-5a1c-4a6e-9d4c-6c0f2f7f3a11/train/11111111-aaaa-4bbb-8ccc-dddddddddddd"
STEP_JOB = job_name("train", ("4f5b0b1c-5a1c-4a6e-9d4c-6c0f2f7f3a11", TASK_FOLDER))


def step(data, folder, **options):
    uris = {"m": f"{TASK_FOLDER}/m"}
    model, metrics, report = (
        Artifact(str(folder / name), uris.get(name, str(folder / name)), {}, {}) for name in ("m", "metrics", "r")
    )
    options = {"train_specification": FIT} | options
    outputs = run_step(
        train_dataset=Artifact(data, "s3://b/data", {}, {}),
        validation_dataset=None,
        model=model,
        metrics=metrics,
        report=report,
        runner="local",
        **options,
    )
    assert outputs == (f"{TASK_FOLDER}/m", "")
    return model, metrics, Path(report.path).read_text()


def test_a_step_fills_its_artifacts(data, tmp_path, capsys):
    model, metrics, report = step(data, tmp_path)
    assert model.metadata == {"framework": "custom", "job": STEP_JOB}
    # KFP stores metrics as JSON, which has no NaN.
    assert metrics.logged == {"loss": 0.5}
    assert "train of run 4f5b0b1c-5a1c-4a6e-9d4c-6c0f2f7f3a11" in report
    assert STEP_JOB in report
    assert "loss" in report
    assert {"1 + 1?", "I add", "It is 2"} <= {*Page(report).texts}
    log = brief_lines(capsys.readouterr().out)
    assert "[worker-0] begins after epoch 0 on 1 shard" in log
    assert "accuracy = nan is left out of the metrics of the step: it is not a finite number" in log
    assert "remark = 'good' is left out of the metrics of the step: it is not a finite number" in log
    assert any(
        line.startswith("updates = 1000")
        and line.endswith("left out of the metrics of the step: it is not a finite number")
        for line in log
    )


def records_of(folder):
    """Return the summary, the report and the log that a step has stored beside its checkpoints."""
    (stored,) = (folder / "checkpoints").iterdir()
    summary = TrainingSummary.from_json((stored / "summary.json").read_text())
    report = (stored / "report.html").read_text() if (stored / "report.html").exists() else ""
    return summary, report, list(read_log(open_store(str(stored / "logs"))))


def test_log_report_and_summary_are_stored_beside_the_checkpoints(data, tmp_path, capsys):
    _, _, report = step(data, tmp_path)
    summary, stored_report, entries = records_of(tmp_path)
    folder = str(tmp_path / "checkpoints" / STEP_JOB)
    labels = {"run": "4f5b0b1c-5a1c-4a6e-9d4c-6c0f2f7f3a11", "task": "train"}
    fixed = TrainingSummary(STEP_JOB, "Job", "", labels, ("worker-0",), 0, folder, str(tmp_path / "m"), "succeeded")
    assert replace(summary, created=0, ended=None) == fixed
    assert summary.created < summary.ended
    assert stored_report == report
    shown = [entry for entry in map(parse_line, capsys.readouterr().out.splitlines()) if entry]
    is_kept = [entry for entry in shown if "is left out of the metrics" not in entry.message]
    assert [entry._replace(time=int(entry.time)) for entry in entries] == is_kept


def test_the_records_of_a_failed_step_have_the_cause(data, tmp_path):
    with pytest.raises(SystemExit):
        step(data, tmp_path, train_specification={"command": ["sh", "-c", "echo before; exit 3"]})
    summary, report, entries = records_of(tmp_path)
    assert summary.state == "failed"
    assert re.match("worker-0 failed with exit code 3, .* after the start of the job", summary.reason)
    assert STEP_JOB in report
    assert ("INFO", "worker-0", "before") in [entry[1:] for entry in entries]
    assert entries[-1][1:] == ("ERROR", "job", summary.reason)


def test_the_records_have_the_cause_of_an_error_after_the_training(data, tmp_path):
    (tmp_path / "r").mkdir()  # The report cannot be written there.
    with pytest.raises(SystemExit, match="IsADirectoryError"):
        step(data, tmp_path)
    summary, _, _ = records_of(tmp_path)
    assert (summary.state, summary.reason[:18]) == ("failed", "IsADirectoryError:")


LOGS = function("""
def fit(model_dir, tensorboard_dir):
    from pathlib import Path
    Path(model_dir, "weights").touch()
    if tensorboard_dir:
        Path(tensorboard_dir, "run").mkdir()
        Path(tensorboard_dir, "run", "events").write_text("logged")
    print(f"tensorboard_dir is {tensorboard_dir!r}")
""")


def test_log_and_report_name_the_folder_of_tensorboard_logs(data, tmp_path, capsys):
    _, _, report = step(data, tmp_path, train_specification=LOGS, distribution_specification={"tensorboard": "true"})
    (folder,) = re.findall(" INFO job TensorBoard's logs: (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert folder == f"{tmp_path}/checkpoints/{STEP_JOB}/metrics/tensorboard"
    assert Path(folder, "run", "events").read_text() == "logged"
    assert folder in report


def test_without_tensorboard_there_is_no_folder_for_its_logs(data, tmp_path, capsys):
    step(data, tmp_path, train_specification=LOGS)
    log = capsys.readouterr().out
    assert " INFO worker-0 tensorboard_dir is ''\n" in log
    assert "TensorBoard" not in log


def test_the_log_of_a_failed_step_ends_with_the_cause_and_the_report_is_written(data, tmp_path):
    with pytest.raises(SystemExit) as end:
        step(
            data,
            tmp_path,
            train_specification={"command": ["sleep", "1000"]},
            distribution_specification={"total_timeout": 0.5},
        )
    assert re.match(
        r"\S+Z ERROR job total_timeout ran out after 0\.5 s: worker-0: no output since it started .* s ago\.\n"
        r"\S+Z INFO job Report: .*/r$",
        end.value.code,
    )
    assert STEP_JOB in (tmp_path / "r").read_text()


def test_a_bug_in_the_report_hides_no_cause(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recorded_job, "job_page", lambda *_: {}["absent"])
    with pytest.raises(SystemExit, match="worker-0 failed with exit code 3"):
        step(data, tmp_path, train_specification={"command": ["sh", "-c", "exit 3"]})
    assert "WARNING job the report cannot be rendered: KeyError('absent')" in capsys.readouterr().out
    assert "worker-0 failed with exit code 3" in (tmp_path / "r").read_text()


def test_control_characters_of_replicas_are_removed_from_the_report(data, tmp_path):
    with pytest.raises(SystemExit):
        step(data, tmp_path, train_specification={"command": ["printf", r"bell \a, escape \033[31m, nul \000\n"]})
    page = (tmp_path / "r").read_text()
    assert "bell \N{REPLACEMENT CHARACTER}, escape , nul \N{REPLACEMENT CHARACTER}" in page


def test_the_log_of_a_step_with_an_invalid_request_ends_with_one_line(data, tmp_path):
    with pytest.raises(SystemExit) as end:
        step(data, tmp_path, train_parameters={"epochs": "many"})
    entry = parse_line(end.value.code)
    assert entry[1:] == ("ERROR", "job", "ValueError: train_parameters of fit: epochs is 'many'; allowed is int")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "status"), [(SystemExit(143), "KILLED"), (KeyboardInterrupt(), "KILLED"), (KeyError("bug"), "FAILED")]
)
def test_a_tracker_gets_the_status_of_a_training_that_a_signal_or_a_bug_ends(
    data, tmp_path, monkeypatch, error, status
):
    def refuse(*arguments):
        raise error

    statuses = []
    tracker = SimpleNamespace(finish=lambda status, *details: statuses.append(status))
    monkeypatch.setattr(step_module, "choose_tracker", lambda *arguments: tracker)
    monkeypatch.setattr(step_module, "choose_runner", refuse)
    with pytest.raises(type(error)):
        step(data, tmp_path)
    assert statuses[0] == status, "only the first call counts"
