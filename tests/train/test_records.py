"""The records of a training: what is stored if a request fails, at any moment."""

import os
import threading
import time
from dataclasses import replace

import pytest
from train.programs.jobs import make_job

from kfp_distributed.cli.ended_jobs import read_summaries
from kfp_distributed.components.train.run.log_entry import LogEntry
from kfp_distributed.components.train.tell import records, stored_log
from kfp_distributed.components.train.tell.stored_log import read_log
from kfp_distributed.components.train.tell.training_summary import REPORT, SUMMARY, TrainingSummary
from kfp_distributed.storage import embedded_object_store, open_store
from kfp_distributed.storage.kfp_store import SECRET_VARIABLE

pytestmark = pytest.mark.takes(2)

TASK = "digits/4f5b0b1c-5a1c-4a6e-9d4c-6c0f2f7f3a11/train/11111111-aaaa-4bbb-8ccc-dddddddddddd"


class LaterTime:
    """The clock in an hour."""

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def time():
        return time.time() + 3600


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The object store of the environment, with a bucket."""
    for name in ("KUBERNETES_SERVICE_HOST", SECRET_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "objects" / "bucket").mkdir(parents=True)
    with embedded_object_store(tmp_path / "objects") as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield


@pytest.fixture
def warnings():
    return []


@pytest.fixture
def begin(warnings):
    """Return a function that starts the records of an attempt, in a pipeline root."""

    def start(root):
        job = make_job(["true"])
        description = replace(job.description, checkpoint_uri=f"{root}/{TASK}/checkpoints/a-job/checkpoints")
        attempt = records.Records(lambda level, text: warnings.append(text))
        attempt.start(replace(job, description=description), "team", f"{root}/{TASK}/model", "TrainJob")
        for thread in threading.enumerate():
            if thread.name == "records":  # It stores the summary.
                thread.join()
        return attempt

    return start


def training_folder(root):
    return root / TASK / "checkpoints" / "a-job"


def test_a_retried_step_has_one_entry_in_the_index_also_if_its_start_cannot_open_the_store(
    store, begin, warnings, monkeypatch
):
    root = "s3://bucket/root"
    begin(root)
    (first,) = read_summaries(open_store(root), "team", 9)
    assert first.kind == "TrainJob"
    # The index has whole seconds, so the attempts must not be in the same one.
    monkeypatch.setattr(records, "time", LaterTime())
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    second = begin(root)
    assert any("the summary of the training is not stored: no credentials" in text for text in warnings)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    second.finish("FINISHED")
    (summary,) = read_summaries(open_store(root), "team", 9)
    assert (summary.created, summary.state) == (first.created, "succeeded")


def test_a_summary_of_another_version_is_replaced(tmp_path, begin, warnings):
    training_folder(tmp_path).mkdir(parents=True)
    (training_folder(tmp_path) / SUMMARY).write_text("{}")
    begin(f"file://{tmp_path}").finish("FINISHED")
    assert TrainingSummary.from_json((training_folder(tmp_path) / SUMMARY).read_text()).state == "succeeded"
    assert warnings == []


def test_an_index_that_cannot_be_written_hides_no_report(tmp_path, begin, warnings):
    (tmp_path / "kfp-distributed").write_text("")
    begin(f"file://{tmp_path}").finish("FAILED", "why", "<p>page</p>")
    assert (training_folder(tmp_path) / REPORT).read_text() == "<p>page</p>"
    assert TrainingSummary.from_json((training_folder(tmp_path) / SUMMARY).read_text()).reason == "why"
    assert all("jobs --ended" in text for text in warnings)
    assert warnings


def test_a_summary_that_takes_too_long_does_not_cost_the_end_of_the_log(tmp_path, begin, monkeypatch, warnings):
    attempt = begin(f"file://{tmp_path}")
    entry, is_finished = LogEntry(1795442712.5, "INFO", "worker-0", "line"), threading.Event()
    attempt.add(entry)

    def open_slowly(uri, **options):
        if "/logs/" not in uri:
            is_finished.wait(120)
        return open_store(uri, **options)

    monkeypatch.setattr(records, "open_store", open_slowly)
    monkeypatch.setattr(records, "END_SECONDS", 3.0)
    attempt.finish("FINISHED")
    is_finished.set()
    assert warnings == ["summary and report of the training are not stored within 3 s"]
    assert list(read_log(open_store(f"{training_folder(tmp_path)}/logs"))) == [entry]


def test_the_log_is_stored_if_the_store_could_not_be_opened_at_the_start(store, begin, monkeypatch, warnings):
    monkeypatch.setattr(stored_log, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(stored_log, "PART_SECONDS", 0.01)
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    started = begin("s3://bucket/root")
    entry = LogEntry(1795442712.5, "INFO", "worker-0", "line")
    started.add(entry)
    waits = threading.Event()
    while not any("no credentials" in text and "the log is not stored" in text for text in warnings):
        assert not waits.wait(0.01)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    started.finish("FINISHED")
    assert list(read_log(open_store(f"s3://bucket/root/{TASK}/checkpoints/a-job/logs"))) == [entry]
