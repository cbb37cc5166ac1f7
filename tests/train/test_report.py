import json

import pytest
from pages import Page
from train.programs.jobs import make_job, workers

from kfp_distributed.components.train.run.conclusions.status import advance, begin, failure_cause
from kfp_distributed.components.train.run.facts import JobEnded, JobEvent, LogLine, ReplicaChanged, ReplicaSample, Span
from kfp_distributed.components.train.run.stored_metrics import read_fine_tuning, read_metrics
from kfp_distributed.components.train.tell.mlflow_tracker import new_metrics
from kfp_distributed.components.train.tell.report import MAX_CURVES, MAX_EVENTS, MAX_TEXT, JobPage, job_page
from kfp_distributed.reports.charts import Mark, line_chart, timeline
from kfp_distributed.reports.page import render_page
from kfp_distributed.reports.parts import Table
from kfp_distributed.trainers.runtime.outputs.fine_tuning_file import FineTuning, HeldOutAnswer
from kfp_distributed.trainers.sync import record_epoch, record_step

pytestmark = [pytest.mark.takes(4), pytest.mark.figures]

ANSWERS = (HeldOutAnswer("user: 1 + 1?", "2", "3", "It is\n2"), HeldOutAnswer("user: 2 + 1?", "3", "4", "It is\n3"))
FINE_TUNING = FineTuning("1,440 rows of 98 tokens (median), 123 at most", ANSWERS)
REPLICA_COLUMNS = ("replica", "state", "end", "restarts", "peak memory", "pip", "node")


def status(*facts, name="a-job", replicas=2):
    now = begin(make_job(["unused"], workers(replicas), name), 1000.0)
    for fact in facts:
        now = advance(now, fact)
    return now


RECORDED = {
    "worker-0": [{"epoch": 1, "loss": 2.0, "val_loss": 3.0}, {"epoch": 2, "loss": 1.0, "val_loss": 2.0}],
    "evaluator-0": [{"epoch": 2, "loss": 1.5}],
}

SUCCEEDED = (
    ReplicaChanged(1001.5, "worker-0", "running", install_seconds=245.0),
    ReplicaSample(1001.5, "worker-0", memory_mib=600.0, rows_per_second=50.0),
    ReplicaChanged(1002, "worker-1", "failed", signal=9),
    JobEvent(1003, "restart 1 of 3: all replicas"),
    ReplicaChanged(1010, "worker-1", "running", restart=1),
    ReplicaSample(1011.5, "worker-0", memory_mib=610.0),
    ReplicaChanged(1060, "worker-1", "succeeded", exit_code=0, restart=1, peak_memory=524800),
    ReplicaChanged(1061, "worker-0", "stopped", reason="over", restart=1, node="node-7"),
    JobEnded(1062, True),
)


@pytest.mark.parametrize(
    ("model_epoch", "saved", "best"),
    [
        (None, [], "2 in epoch 2"),
        (1, [("Saved model", "of epoch 1")], "2 in epoch 2"),
        (2, [("Saved model", "of epoch 2")], "2 in epoch 2, the saved model"),
        (3, [("Saved model", "of epoch 3, the last")], "2 in epoch 2"),
    ],
)
def test_the_report_says_which_epoch_the_model_is_of_and_which_is_the_best(model_epoch, saved, best):
    epochs = [{"epoch": epoch, "loss": 0.0, "val_loss": value} for epoch, value in ((1, 3.0), (2, 2.0), (3, 4.0))]
    facts = job_page(status(*SUCCEEDED), {"worker-0": epochs}, model_epoch=model_epoch).facts
    assert [fact for fact in facts if fact[0] in ("Saved model", "Best loss")] == [*saved, ("Best loss", best)]


def test_content_of_a_report():
    page = job_page(status(*SUCCEEDED), RECORDED, {"kind": "TFJob"}, model_epoch=3, fine_tuning=FINE_TUNING)
    assert page == JobPage(
        title="a-job",
        succeeded=True,
        outcome="succeeded after 1 min 2 s",
        job="a-job",
        cause="",
        last_lines="",
        facts=(
            ("Duration", "1 min 2 s"),
            ("Replicas", "2"),
            ("Training rows", "1,440 rows of 98 tokens (median), 123 at most"),
            ("Epochs", "2"),
            ("Saved model", "of epoch 3"),
            ("Best loss", "2 in epoch 2"),
            ("Restarts of replicas", "2"),
            ("Peak memory of a replica", "610 MiB"),
        ),
        curves=(
            line_chart(
                "loss",
                "epoch",
                "loss",
                {
                    "worker-0": [(1, 2.0), (2, 1.0)],
                    "worker-0 validation": [(1, 3.0), (2, 2.0)],
                    "evaluator-0": [(2, 1.5)],
                },
                [Mark(2, 2.0, "best: epoch 2")],
                dashed=["worker-0 validation"],
            ),
        ),
        measure_count=1,
        answers=Table(
            ("prompt", "reference", "base model", "tuned model"),
            (("user: 1 + 1?", "2", "3", "It is\n2"), ("user: 2 + 1?", "3", "4", "It is\n3")),
        ),
        timeline=timeline(
            "Replicas over time",
            {
                "worker-0": [
                    Span("waiting", 1000, 1001.5),
                    Span("running", 1001.5, 1061),
                    Span("stopped", 1061, 1061, "over"),
                ],
                "worker-1": [
                    Span("waiting", 1000, 1002),
                    Span("failed", 1002, 1010, "signal 9 (SIGKILL), often a lack of memory"),
                    Span("running", 1010, 1060, "restart 1"),
                    Span("succeeded", 1060, 1060),
                ],
            },
        ),
        usage=(
            line_chart("Throughput", "time", "rows/s", {"worker-0": [(1.5, 50.0)]}, x_is_time=True),
            line_chart("Memory", "time", "MiB", {"worker-0": [(1.5, 600.0), (11.5, 610.0)]}, x_is_time=True),
        ),
        replicas=Table(
            REPLICA_COLUMNS,
            (
                ("worker-0", "stopped", "over", "1", "", "4 min 5 s", "node-7"),
                ("worker-1", "succeeded", "exit code 0", "1", "512 MiB", "", ""),
            ),
        ),
        events=Table(
            ("after", "what happened"),
            (
                ("1.5 s", "worker-0: running"),
                ("2 s", "worker-1: failed (signal 9 (SIGKILL), often a lack of memory)"),
                ("3 s", "restart 1 of 3: all replicas"),
                ("10 s", "worker-1: running"),
                ("1 min", "worker-1: succeeded"),
                ("1 min 1 s", "worker-0: stopped (over)"),
                ("1 min 2 s", "the job succeeded"),
            ),
            7,
        ),
        manifest='{\n "kind": "TFJob"\n}',
    )


def test_the_page_shows_all_content():
    content = job_page(status(*SUCCEEDED), RECORDED, {"kind": "TFJob"}, fine_tuning=FINE_TUNING)
    page = Page(render_page("train.html", content))
    charts = [*content.curves, content.timeline, *content.usage]
    curve, *others = (chart.table for chart in charts)
    tables = [curve, content.answers, *others, content.replicas, content.events]
    assert page.tables == [[list(row) for row in (table.columns, *table.rows)] for table in tables]
    assert [tag["data-figure"] for tag in page.all("div") if "data-figure" in tag] == [c.summary for c in charts]
    texts = {"a-job", "succeeded after 1 min 2 s", "Job a-job", "Best loss", "Throughput", content.manifest}
    assert texts <= set(page.texts)


def test_the_cause_comes_first_with_the_last_lines_of_the_replica():
    failed = status(ReplicaChanged(1001, "worker-0", "failed", exit_code=1), JobEnded(1002, False))
    lines = "2026-11-23T14:05:12Z ERROR worker-0 a line\n2026-11-23T14:05:12Z ERROR worker-0   ValueError"
    content = job_page(failed, RECORDED, {}, f"{lines}\nworker-0 failed. No restarts.")
    assert (content.cause, content.last_lines) == (
        "worker-0 failed. No restarts.",
        "[worker-0] a line\n[worker-0]   ValueError",
    )
    texts = Page(render_page("train.html", content)).texts
    order = ["failed after 2 s", content.cause, content.last_lines, "Replicas", "loss"]
    assert sorted(order, key=texts.index) == order


def test_a_job_without_a_complete_model_is_a_failed_training():
    page = job_page(status(JobEnded(1002, True)), {}, {}, "The job succeeded, but left no complete model.")
    assert (page.succeeded, page.outcome, page.last_lines) == (False, "failed after 2 s", "")


@pytest.mark.parametrize(
    ("measure", "validation", "best"),
    [
        ("loss", False, 2),
        ("loss", True, 3),
        ("binary_accuracy", False, 1),
        ("val_like_a_name", False, None),
        ("learning_rate", False, None),
    ],
)
def test_the_best_epoch_is_marked(measure, validation, best):
    values = {1: 5.0, 2: 1.0, 3: 2.0, 4: float("nan"), 5: float("inf"), 6: float("-inf")}
    epochs = [{"epoch": epoch, measure: value} for epoch, value in values.items()]
    if validation:
        epochs[2][f"val_{measure}"] = 4.0
    page = job_page(status(JobEnded(1001, True)), {"worker-0": epochs})
    (chart,) = page.curves
    marks = [entry.label for entry in chart.legend if entry.style == "mark"]
    assert marks == ([f"best: epoch {best}"] if best else [])


def test_many_replicas_share_an_entry_of_the_legend():
    metrics = {f"worker-{i}": [{"epoch": 1, "loss": i, "val_loss": i}] for i in range(20)}
    metrics["evaluator-0"] = [{"epoch": 1, "loss": 3}]
    (chart,) = job_page(status(JobEnded(1001, True)), metrics).curves
    assert [(entry.label, entry.style) for entry in chart.legend] == [
        ("worker", "solid"),
        ("worker validation", "dashed"),
        ("evaluator", "solid"),
        ("best: epoch 1", "mark"),
    ]


def test_the_newest_events_are_shown():
    events = [JobEvent(1000 + i, f"event {i}") for i in range(MAX_EVENTS + 10)]
    table = job_page(status(*events), {}).events
    assert (table.rows[0][1], len(table.rows), table.total) == ("event 10", MAX_EVENTS, MAX_EVENTS + 10)


def test_a_page_stays_small_whatever_a_training_writes():
    replica = "worker-0"
    facts = [LogLine(1001, replica, "é" * 65_000) for _ in range(20)]
    facts += [JobEvent(1001, "x" * 65_000)] * MAX_EVENTS
    facts += [ReplicaChanged(1002, replica, "failed", exit_code=1), JobEnded(1003, False, "")]
    failed = status(*facts)
    measures = {f"measure {i}": 1.0 for i in range(2 * MAX_CURVES)}
    content = job_page(failed, {replica: [{"epoch": 1, **measures}]}, {}, failure_cause(failed))
    assert (len(content.curves), content.measure_count) == (MAX_CURVES, 2 * MAX_CURVES)
    assert content.last_lines.splitlines()[0].endswith("é… (65,011 characters)")
    assert len(content.events.rows[0][1]) < MAX_TEXT + 30
    page = render_page("train.html", content)
    assert len(page.encode()) < 2_000_000
    assert f"{MAX_CURVES} of {2 * MAX_CURVES} measures." in page


def test_replicas_that_run_at_the_end_of_the_job_were_stopped():
    page = job_page(status(ReplicaChanged(1001, "worker-1", "running"), JobEnded(1002, True)), {})
    assert page.replicas.rows == (
        ("worker-0", "waiting", "", "0", "", "", ""),
        ("worker-1", "stopped", "", "0", "", "", ""),
    )


def test_nothing_that_a_replica_or_a_user_names_becomes_markup():
    evil = "<script>alert(1)</script>&'\"ü"

    def report(text):
        facts = (ReplicaChanged(1001, "worker-0", "failed", reason=text), JobEvent(1001, text))
        content = job_page(
            status(*facts, JobEnded(1002, False, text), name=text),
            {text: [{"epoch": 1, text: 1.0}, {"epoch": 2, text: float("nan")}]},
            {"metadata": {"name": text}},
            f"ValueError: {text}",
            fine_tuning=FineTuning(text, (HeldOutAnswer(text, text, text, text),)),
        )
        return Page(render_page("train.html", content))

    page, harmless = report(evil), report("text")
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in harmless.elements]
    assert page.table("node")[0] == dict(
        zip(REPLICA_COLUMNS, ("worker-0", "failed", evil, "0", "", "", ""), strict=True)
    )
    assert [*page.table("tuned model")[0].values()] == [evil] * 4
    assert {
        evil,
        "failed after 2 s",
        f"Job {evil}",
        f"{evil}: nan at epoch 2",
        f"ValueError: {evil}",
        json.dumps({"metadata": {"name": evil}}, indent=1, ensure_ascii=False),
    } <= set(page.texts)


def page_of_metrics(metrics):
    content = job_page(status(JobEnded(1001, True)), metrics)
    return content.curves, Page(render_page("train.html", content))


def test_a_loss_that_became_nan_is_named(tmp_path):
    for epoch, loss in enumerate((2.0, 1.0, float("nan"), float("nan")), 1):
        record_epoch(tmp_path / "training.json", "worker-0", epoch, 4, {"loss": loss})
    (chart,), page = page_of_metrics(read_metrics(str(tmp_path)))
    assert "worker-0: nan from epoch 3 to 4" in page.texts
    assert chart.table.rows == (("1", "2"), ("2", "1"))


def test_a_loss_that_was_never_a_number_has_no_curve():
    (chart,), page = page_of_metrics({"worker-0": [{"epoch": 1, "loss": float("nan")}]})
    assert "worker-0: nan at epoch 1" in page.texts
    assert chart.table.rows == ()


def test_epochs_without_measures_have_no_charts():
    assert job_page(status(JobEnded(1001, True)), {"worker-0": [], "worker-1": [{"epoch": 1}]}).curves == ()


def test_numbers_of_any_size_do_not_fail_the_report(tmp_path):
    kept = {"replica": "worker-0", "epochs": [{"epoch": 0, "loss": 2.0}, {"epoch": 1, "loss": 10**400}]}
    (tmp_path / "training.json").write_text(json.dumps(kept))
    (chart,), page = page_of_metrics(read_metrics(str(tmp_path)))
    assert "worker-0: inf at epoch 1" in page.texts
    assert chart.table.rows == (("0", "2"),)


def test_an_epoch_too_large_for_a_float_leaves_its_metrics_out(tmp_path):
    kept = {"replica": "worker-0", "epochs": [{"epoch": 10**400, "loss": 2.0}]}
    (tmp_path / "training.json").write_text(json.dumps(kept))
    assert read_metrics(str(tmp_path)) == {}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[1]",
        '{"tokens": "", "answers": [1]}',
        '{"tokens": "", "answers": [{"prompt": "a"}]}',
        '{"answers": []}',
    ],
)
def test_a_file_of_another_form_is_left_out(tmp_path, content):
    assert read_fine_tuning(str(tmp_path)) == FineTuning()
    (tmp_path / "fine_tuning.json").write_text(content)
    assert read_fine_tuning(str(tmp_path)) == FineTuning()


def test_a_row_with_both_numbers_is_one_of_its_list(tmp_path):
    """Programs write such rows: the Trainer of transformers logs the epoch of each step."""
    steps = [{"step": step, "epoch": step / 50, "loss": 1 / step} for step in (10, 20, 30)]
    content = {"replica": "worker-0", "epochs": [{"epoch": 1, "step": 50, "loss": 0.25}], "steps": steps}
    (tmp_path / "training.json").write_text(json.dumps(content))
    metrics = read_metrics(str(tmp_path))
    assert metrics == {
        "worker-0": [{"epoch": 1, "loss": 0.25}, *({"step": step, "loss": 1 / step} for step in (10, 20, 30))]
    }
    page = job_page(status(JobEnded(1001, True)), metrics)
    assert [chart.title for chart in page.curves] == ["loss", "loss by step"]
    logged = [(metric.key, metric.step) for metric in new_metrics(metrics, {}, 7.0)]
    assert logged == [("training/loss", 1), *(("training_steps/loss", step) for step in (10, 20, 30))]


def test_steps_have_charts_of_their_own_and_the_best_is_that_of_validation_rows(tmp_path):
    for step in range(1, 31):
        record_step(tmp_path / "training.json", step, 30, {"loss": 1 / step, "tokens/s": 100.0})
    for step, loss in ((10, 0.5), (20, 0.25), (30, 0.75)):
        record_step(tmp_path / "training.json", step, 30, {"val_loss": loss})
    record_epoch(tmp_path / "training.json", "replica-0", 1, 1, {"loss": 0.5})
    metrics = read_metrics(str(tmp_path))
    content = job_page(status(JobEnded(1001, True)), metrics)
    titles = ["loss", "loss by step", "tokens/s by step"]
    assert [chart.title for chart in content.curves] == titles
    assert [fact for fact in content.facts if fact[0] in ("Epochs", "Steps") or fact[0].startswith("Best")] == [
        ("Epochs", "1"),
        ("Steps", "30"),
        ("Best loss", "0.5 in epoch 1"),
        ("Best loss by step", "0.25 in step 20"),
    ]
    assert "tokens/s by step" in render_page("train.html", content)


def test_the_reward_margins_of_training_and_validation_rows_have_one_chart(tmp_path):
    for step, margin in ((1, 0.0), (2, 0.5)):
        record_step(tmp_path / "training.json", step, 2, {"rewards/margins": margin, "val_rewards/margins": margin / 2})
    (chart,) = job_page(status(JobEnded(1001, True)), read_metrics(str(tmp_path))).curves
    assert chart.title == "rewards/margins by step"
    assert chart.table.rows == (("1", "0", "0"), ("2", "0.5", "0.25"))
