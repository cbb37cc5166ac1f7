from html.parser import HTMLParser

import pytest
from train.programs.jobs import make_job, workers

from kfp_distributed.components.train.job import JobEnded, JobEvent, ReplicaChanged
from kfp_distributed.components.train.report import job_report
from kfp_distributed.components.train.status import advance, begin


def status(*facts, name="a-job"):
    now = begin(make_job(["unused"], workers(2), name), 1000.0)
    for fact in facts:
        now = advance(now, fact)
    return now


class Page(HTMLParser):
    """The texts of a page, the table cells row by row, and its tags."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.texts, self.tags, self.lines = [], [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "polyline":
            self.lines.append(dict(attributes)["points"])

    def handle_data(self, text):
        self.texts.append(text)
        if self.lasttag in ("td", "th"):
            self.rows[-1][-1] += text


def test_report_of_a_job():
    page = Page(
        job_report(
            status(
                ReplicaChanged(1001.5, "worker-0", "running", install_seconds=245.0),
                ReplicaChanged(1002, "worker-1", "failed", signal=9),
                JobEvent(1003, "restart 1 of 3: all replicas"),
                ReplicaChanged(1060, "worker-1", "succeeded", exit_code=0, restart=1, peak_memory=524800),
                ReplicaChanged(1061, "worker-0", "stopped", reason="over", restart=1, node="node-7"),
                JobEnded(1062, True),
            ),
            {
                "worker-0": [{"epoch": 1, "loss": 2.0, "val_loss": 3.0}, {"epoch": 2, "loss": 1.0, "val_loss": 2.0}],
                "evaluator-0": [{"epoch": 2, "loss": 1.5}],
            },
        )
    )
    assert "a-job succeeded after 1 min 2 s" in page.texts
    assert page.rows == [
        ["replica", "state", "end", "restarts", "peak memory", "pip", "node"],
        ["worker-0", "stopped", "over", "1", "", "4 min 5 s", "node-7"],
        ["worker-1", "succeeded", "exit code 0", "1", "512 MiB", "", ""],
        ["after", "what happened"],
        ["1.5 s", "worker-0: running"],
        ["2 s", "worker-1: failed (signal 9 (SIGKILL), often a lack of memory)"],
        ["3 s", "restart 1 of 3: all replicas"],
        ["1 min", "worker-1: succeeded"],
        ["1 min 1 s", "worker-0: stopped (over)"],
        ["1 min 2 s", "the job succeeded"],
    ]
    assert page.lines == ["40,120 40,120 600,200", "40,40 40,40 600,120", "600,160 600,160"]
    assert {"worker-0 loss", "worker-0 val_loss", "evaluator-0 loss", "epoch 2", "3", "1"} <= set(page.texts)


def test_what_still_ran_when_its_job_ended_was_stopped():
    page = Page(job_report(status(ReplicaChanged(1001, "worker-1", "running"), JobEnded(1002, True)), {}))
    assert page.rows[1:3] == [
        ["worker-0", "waiting", "", "0", "", "", ""],
        ["worker-1", "stopped", "", "0", "", "", ""],
    ]


def test_nothing_that_a_replica_or_a_user_names_becomes_markup():
    evil = "<script>alert(1)</script>&"
    text = job_report(
        status(
            ReplicaChanged(1001, "worker-0", "failed", reason=evil),
            JobEvent(1001, evil),
            JobEnded(1002, False, evil),
            name=evil,
        ),
        {evil: [{"epoch": 1, evil: 1.0}]},
        {"metadata": {"name": evil}},
        f"ValueError: {evil}",
    )
    page = Page(text)
    assert page.tags == {
        "meta",
        "title",
        "style",
        "h1",
        "p",
        "svg",
        "polyline",
        "text",
        "table",
        "tr",
        "th",
        "td",
        "details",
        "summary",
        "pre",
    }
    assert f"{evil} failed after 2 s" in page.texts
    assert f"{evil} {evil}" in page.texts
    assert ["worker-0", "failed", evil, "0", "", "", ""] in page.rows


@pytest.mark.parametrize("epochs", [[], [{"epoch": 1}], [{"epoch": 1, "loss": float("nan")}]])
def test_no_curve_without_numbers(epochs):
    assert "<svg" not in job_report(status(JobEnded(1001, True)), {"worker-0": epochs})


def test_numbers_that_are_none_are_left_out_of_a_curve():
    epochs = [{"epoch": 1, "loss": 4.0}, {"epoch": 2, "loss": float("inf")}, {"epoch": 3, "loss": 2.0}]
    assert Page(job_report(status(), {"worker-0": epochs})).lines == ["40,40 40,40 600,200"]
