"""The records of a training: what is stored if a request fails, at any moment."""

import os
import threading
import time
from dataclasses import replace
from itertools import count

import pytest
from train.programs.jobs import make_job, wait_until

from kfp_distributed.cli.jobs.ended_jobs import read_summaries
from kfp_distributed.components.train.run.shown_progress.log_entry import LogEntry
from kfp_distributed.components.train.tell import records, stored_log
from kfp_distributed.components.train.tell.stored_log import read_log
from kfp_distributed.components.train.tell.training_summary import LOGS, REPORT, SUMMARY, TrainingSummary
from kfp_distributed.storage import answers, embedded_object_store, open_store
from kfp_distributed.storage.kubeflow.kfp_store import SECRET_VARIABLE

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


def test_the_index_of_a_step_on_the_machine_of_a_user_is_in_its_checkpoint_uri(store, tmp_path, warnings):
    job = make_job(["true"])
    folder = f"s3://bucket/laptop/{job.name}"
    description = replace(job.description, checkpoint_uri=f"{folder}/checkpoints")
    attempt = records.Records(lambda level, text: warnings.append(text))
    attempt.start(replace(job, description=description), "team", f"{tmp_path}/{TASK}/model", "TFJob")
    attempt.finish("FINISHED", "", "")
    (summary,) = read_summaries(open_store("s3://bucket/laptop"), "team", 9)
    assert (summary.folder, summary.state, warnings) == (folder, "succeeded", [])


def test_a_model_of_an_unknown_pipeline_root_has_no_index(store, warnings):
    job = make_job(["true"])
    description = replace(job.description, checkpoint_uri=f"s3://bucket/own/{job.name}/checkpoints")
    attempt = records.Records(lambda level, text: warnings.append(text))
    attempt.start(replace(job, description=description), "team", "s3://bucket/model", "TFJob")
    attempt.finish("FINISHED", "", "")
    assert [entry.key for entry in open_store("s3://bucket").list() if "/team/" in entry.key] == []


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


class Clock:
    """A clock that only its test advances. It begins after those of earlier tests, at which stores have answered."""

    hours = count(1)

    def __init__(self):
        self.begin = self.seconds = round(time.monotonic()) + 3600 * next(self.hours)

    def monotonic(self):
        return self.seconds

    time = staticmethod(time.time)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (records, answers):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(records, "LOOK_SECONDS", 0.01)
    return clock


def test_the_end_is_stored_as_long_as_the_store_answers(store, begin, monkeypatch, warnings, clock):
    """Each of its requests takes 50 seconds, as on a busy node."""
    attempt = begin("s3://bucket/root")
    entry = LogEntry(1795442712.5, "INFO", "worker-0", "line")
    attempt.add(entry)

    def open_slowly(uri, **options):
        found = open_store(uri, **options)
        clock.seconds += 50
        wait_until(lambda: any(f"for {clock.seconds - clock.begin:.0f} s so far" in text for text in warnings))
        return found

    monkeypatch.setattr(records, "open_store", open_slowly)
    attempt.finish("FINISHED", report="<p>page</p>")
    assert clock.seconds >= clock.begin + 3 * 50
    assert [text for text in warnings if "not stored" in text] == []
    root = open_store(f"s3://bucket/root/{TASK}/checkpoints/a-job")
    assert TrainingSummary.from_json(root.read(SUMMARY)).state == "succeeded"
    assert root.read(REPORT) == b"<p>page</p>"
    assert list(read_log(open_store(f"{root.uri}/{LOGS}"))) == [entry]


@pytest.mark.parametrize(
    ("status", "seconds", "reason"),
    [
        ("FINISHED", 60, "the object store has not answered for 60 s"),
        ("KILLED", 2, "a cancelled step waits 2 s for them"),
    ],
)
def test_a_store_that_does_not_answer_delays_the_end_by_a_bounded_time(
    tmp_path, begin, monkeypatch, warnings, clock, status, seconds, reason
):
    attempt = begin(f"file://{tmp_path}")
    entry, is_finished = LogEntry(1795442712.5, "INFO", "worker-0", "line"), threading.Event()
    attempt.add(entry)

    def open_slowly(uri, **options):
        wait_until(lambda: [*training_folder(tmp_path).glob("logs/*/*.gz")])
        clock.seconds += seconds
        is_finished.wait(120)
        raise OSError("away")

    monkeypatch.setattr(records, "open_store", open_slowly)
    before = set(threading.enumerate())
    attempt.finish(status)
    is_finished.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(120)  # It prints nothing any more: the interpreter may be ending.
    assert warnings == [f"summary and report of the training are not stored: {reason}"]
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
