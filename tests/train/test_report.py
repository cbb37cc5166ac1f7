import json

from pages import Page
from train.programs.jobs import make_job, workers

from kfp_distributed.components.train.job import JobEnded, JobEvent, ReplicaChanged
from kfp_distributed.components.train.launch import read_metrics
from kfp_distributed.components.train.report import JobPage, job_page
from kfp_distributed.components.train.status import advance, begin
from kfp_distributed.reports.parts import Line, LineChart, Table
from kfp_distributed.reports.render import render_page
from kfp_distributed.trainers.sync import record_epoch

REPLICA_COLUMNS = ("replica", "state", "end", "restarts", "peak memory", "pip", "node")


def status(*facts, name="a-job"):
    now = begin(make_job(["unused"], workers(2), name), 1000.0)
    for fact in facts:
        now = advance(now, fact)
    return now


RECORDED = {
    "worker-0": [{"epoch": 1, "loss": 2.0, "val_loss": 3.0}, {"epoch": 2, "loss": 1.0, "val_loss": 2.0}],
    "evaluator-0": [{"epoch": 2, "loss": 1.5}],
}


def succeeded():
    return status(
        ReplicaChanged(1001.5, "worker-0", "running", install_seconds=245.0),
        ReplicaChanged(1002, "worker-1", "failed", signal=9),
        JobEvent(1003, "restart 1 of 3: all replicas"),
        ReplicaChanged(1060, "worker-1", "succeeded", exit_code=0, restart=1, peak_memory=524800),
        ReplicaChanged(1061, "worker-0", "stopped", reason="over", restart=1, node="node-7"),
        JobEnded(1062, True),
    )


def test_content_of_a_report():
    assert job_page(succeeded(), RECORDED, {"kind": "TFJob"}) == JobPage(
        title="a-job",
        outcome="succeeded after 1 min 2 s",
        job="a-job",
        cause="",
        charts=(
            LineChart(
                "loss",
                (
                    Line("worker-0 loss", "0,80 0,80 600,160"),
                    Line("worker-0 val_loss", "0,0 0,0 600,80"),
                    Line("evaluator-0 loss", "600,120 600,120"),
                ),
                low="1",
                high="3",
                first_epoch="1",
                last_epoch="2",
            ),
        ),
        replicas=Table(
            REPLICA_COLUMNS,
            (
                ("worker-0", "stopped", "over", "1", "", "4 min 5 s", "node-7"),
                ("worker-1", "succeeded", "exit code 0", "1", "512 MiB", "", ""),
            ),
        ),
        timeline=Table(
            ("after", "what happened"),
            (
                ("1.5 s", "worker-0: running"),
                ("2 s", "worker-1: failed (signal 9 (SIGKILL), often a lack of memory)"),
                ("3 s", "restart 1 of 3: all replicas"),
                ("1 min", "worker-1: succeeded"),
                ("1 min 1 s", "worker-0: stopped (over)"),
                ("1 min 2 s", "the job succeeded"),
            ),
        ),
        manifest='{\n "kind": "TFJob"\n}',
    )


def test_the_page_shows_the_whole_content():
    content = job_page(succeeded(), RECORDED, {"kind": "TFJob"})
    page = Page(render_page("train.html", content))
    assert page.tables == [
        [list(row) for row in (table.columns, *table.rows)] for table in (content.replicas, content.timeline)
    ]
    assert [line["points"] for line in page.all("polyline")] == [line.points for line in content.charts[0].lines]
    assert {
        "a-job",
        "a-job succeeded after 1 min 2 s",
        "Job a-job",
        "loss",
        "worker-0 loss",
        "worker-0 val_loss",
        "evaluator-0 loss",
        "epoch 1",
        "epoch 2",
        "3",
        "1",
        content.manifest,
    } <= set(page.texts)


def test_what_still_ran_when_its_job_ended_was_stopped():
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
        )
        return Page(render_page("train.html", content))

    page, harmless = report(evil), report("text")
    assert page.elements == harmless.elements
    assert page.tables[0][1] == ["worker-0", "failed", evil, "0", "", "", ""]
    assert {
        evil,
        f"{evil} failed after 2 s",
        f"Job {evil}",
        f"{evil} {evil}",
        f"{evil} {evil}: nan in epoch 2",
        f"ValueError: {evil}",
        json.dumps({"metadata": {"name": evil}}, indent=1, ensure_ascii=False),
    } <= set(page.texts)


def page_of_metrics(metrics):
    return Page(render_page("train.html", job_page(status(JobEnded(1001, True)), metrics)))


def test_a_loss_that_became_nan_is_named(tmp_path):
    for epoch, loss in enumerate((2.0, 1.0, float("nan"), float("nan")), 1):
        record_epoch(tmp_path / "training.json", "worker-0", epoch, 4, {"loss": loss})
    page = page_of_metrics(read_metrics(str(tmp_path)))
    assert "worker-0 loss: nan in epochs 3 to 4" in page.texts
    assert [line["points"] for line in page.all("polyline")] == ["0,0 0,0 200,160"]


def test_a_loss_that_was_never_a_number_has_no_curve():
    page = page_of_metrics({"worker-0": [{"epoch": 1, "loss": float("nan")}]})
    assert "worker-0 loss: nan in epoch 1" in page.texts
    assert page.all("svg") == []


def test_epochs_without_measures_have_no_charts():
    assert job_page(status(JobEnded(1001, True)), {"worker-0": [], "worker-1": [{"epoch": 1}]}).charts == ()


def test_numbers_of_any_size_do_not_fail_the_report(tmp_path):
    kept = {"replica": "worker-0", "epochs": [{"epoch": 0, "loss": 2.0}, {"epoch": 1, "loss": 10**400}]}
    (tmp_path / "training.json").write_text(json.dumps(kept))
    page = page_of_metrics(read_metrics(str(tmp_path)))
    assert {"epoch 0", "epoch 1", "worker-0 loss: inf in epoch 1"} <= set(page.texts)


def test_an_epoch_too_large_for_a_float_leaves_its_metrics_out(tmp_path):
    kept = {"replica": "worker-0", "epochs": [{"epoch": 10**400, "loss": 2.0}]}
    (tmp_path / "training.json").write_text(json.dumps(kept))
    assert read_metrics(str(tmp_path)) == {}
