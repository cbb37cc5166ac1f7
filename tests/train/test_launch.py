"""`launch` with real replicas, which run the real entry program and need no TensorFlow."""

import json
import re
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_lines import brief, into
from train.programs.jobs import make_job, workers

from kfp_distributed.components.train.run.conclusions.failures import FOR_GOOD
from kfp_distributed.components.train.run.conclusions.status import failure_cause
from kfp_distributed.components.train.run.facts import JobEnded, JobEvent, LogLine, ReplicaChanged, ReplicaSample, Tick
from kfp_distributed.components.train.run.launch import TrainingFailed, follow_job, launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.stored_metrics import read_metrics
from kfp_distributed.components.train.run.training_request.request import Request, job_name, plan_job
from kfp_distributed.components.train.tell.step_log import StepLog
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.model import verify_model_folder
from kfp_distributed.storage.object_stores.embedded import embedded_object_store

pytestmark = pytest.mark.takes(28)


def function(source):
    return {"function": "fit", "source": source}


# Resumes from its checkpoint and saves a model, metrics, and answers as `language_model` does.
FIT = function("""
def fit(train_dir, model_dir, checkpoint_dir, metrics_dir, epochs: int = 1):
    import json, os
    from pathlib import Path
    if os.environ["KFP_DISTRIBUTED_REPLICA"] != "worker-0":
        return
    state = Path(checkpoint_dir, "state")
    begun = int(state.read_text()) if state.exists() else 0
    print(f"begins after epoch {begun} on {len(list(Path(train_dir).glob('*.parquet')))} shard")
    state.write_text(str(begun + epochs))
    Path(model_dir, "weights").write_text(str(begun + epochs))
    history = [{"epoch": begun + epochs, "loss": 0.5, "accuracy": float("nan"), "remark": "good", "updates": 10**400}]
    Path(metrics_dir, "training.json").write_text(json.dumps({"replica": "worker-0", "epochs": history}))
    answers = [{"prompt": "1 + 1?", "reference": "2", "base": "I add", "tuned": "It is 2"}]
    Path(metrics_dir, "fine_tuning.json").write_text(json.dumps({"tokens": "2 rows", "answers": answers}))
""")


def request(data, folder, **changed):
    defaults = {
        "train_uri": data,
        "validation_uri": data,
        "model_uri": str(folder / "model"),
        "train_specification": FIT,
        "identity": ("run", "train", "1"),
        "distribution_specification": workers(2),
    }
    return Request(**{**defaults, **changed})


def run(request):
    """Run a training; return its outcome and the lines of the log."""
    log = []
    return launch(request, LocalRunner(), into(log)), log


def failure(request):
    with pytest.raises(TrainingFailed) as error:
        launch(request, LocalRunner(), lambda line: None)
    return str(error.value)


def test_a_job_saves_model_and_metrics_and_only_the_same_step_resumes_it(data, tmp_path):
    outcome, log = run(request(data, tmp_path, validation_uri="", train_parameters={"epochs": 2.0}))
    name = job_name("train", ("run", "train", "1"))
    assert outcome.status.job == outcome.model.job == name
    assert [entry.path for entry in outcome.model.files] == ["weights"]
    assert outcome.model.format == "custom"
    assert outcome.model.metrics["loss"] == 0.5
    assert {replica: [epoch["epoch"] for epoch in epochs] for replica, epochs in outcome.metrics.items()} == {
        "worker-0": [2]
    }
    assert "[worker-0] begins after epoch 0 on 1 shard" in log
    assert log[0] == f"checkpoints are stored in {tmp_path}/checkpoints/{name}"
    assert log[1].startswith("starting 2 processes in ")
    assert log[-1] == "the job succeeded"
    assert {path.name for path in tmp_path.iterdir()} == {"model", "checkpoints"}
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [name]

    # The same step with other parameters resumes. Another step does not, although both use the same folder for
    # checkpoints.
    assert "[worker-0] begins after epoch 2 on 1 shard" in run(request(data, tmp_path))[1]
    other, log = run(request(data, tmp_path, identity=("run", "train", "2")))
    assert "[worker-0] begins after epoch 0 on 1 shard" in log
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
    assert (tmp_path / "model" / "weights").read_text() == "1"
    assert other.model.job != name


# Leaves a thread that Python would wait for.
LEAVES_A_THREAD = """
def fit(model_dir):
    import threading, time
    from pathlib import Path
    from kfp_distributed.trainers.runtime.lifecycle import ending
    ending.LEFTOVER_SECONDS = 0.5
    threading.Thread(target=time.sleep, args=(1000,), name="feeder").start()
    Path(model_dir, "weights").write_text("1")
"""


def test_a_thread_that_the_function_leaves_does_not_hold_the_training(data, tmp_path):
    leaves = function(LEAVES_A_THREAD)
    outcome, log = run(request(data, tmp_path, train_specification=leaves, distribution_specification=None))
    assert [entry.path for entry in outcome.model.files] == ["weights"]
    assert [line for line in log if "feeder" in line] == [
        "[worker-0] the program has ended, but threads of it have not within 0.5 s: feeder. They are ended"
    ]
    fails = function(f"{LEAVES_A_THREAD}    1 / 0\n")
    alone = {"train_specification": fails, "distribution_specification": None, "identity": ("run", "train", "2")}
    assert "worker-0 failed with exit code 1, " in failure(request(data, tmp_path, **alone))


def test_paths_may_be_relative_and_checkpoints_elsewhere(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    uris = {"model_uri": "model", "checkpoint_uri": "kept", "distribution_specification": None}
    outcome, _ = run(request(data, tmp_path, **uris))
    assert (tmp_path / "model" / "weights").read_text() == "1"
    assert {path.name for path in tmp_path.iterdir()} == {"model", "kept"}
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [outcome.status.job]


def test_checkpoints_are_stored_beside_the_model_or_in_checkpoint_uri(data, tmp_path):
    def folder(**changed):
        return plan_job(request(data, tmp_path, **changed)).description.checkpoint_uri

    name = job_name("train", ("run", "train", "1"))
    assert folder() == f"{tmp_path}/checkpoints/{name}/checkpoints"
    assert folder(model_uri="s3://b/run/model") == f"s3://b/run/checkpoints/{name}/checkpoints"
    assert folder(model_uri="s3://b/run/model?endpoint=http://h:1/") == (
        f"s3://b/run/checkpoints/{name}/checkpoints?endpoint=http://h:1/"
    )
    assert folder(checkpoint_uri="s3://kept/") == f"s3://kept/{name}/checkpoints"


INVALID = [
    (
        {"distribution_specification": {"number_of_worker": 2}},
        "distribution_specification: 'number_of_worker' = 2 is not a known key; did you mean number_of_workers?",
    ),
    (
        {"distribution_specification": workers(0)},
        "distribution_specification: number_of_workers = 0 is not a whole number from 1 to 10000",
    ),
    (
        {"train_specification": {"trainer": "keras_horovod"}},
        "distribution_type = 'TF': keras_horovod is for MPI; choose keras_classifier",
    ),
    (
        {
            "train_specification": {"trainer": "torch_horovod"},
            "distribution_specification": {"distribution_type": "MPI", "max_workers": 3},
        },
        "min_workers = 2: torch_horovod is not elastic; remove it",
    ),
    *(
        (
            {"train_specification": {"trainer": "language_model"}, "distribution_specification": distribution},
            f"worker_gpus = {gpus}: language_model uses a GPU for each rank, and a replica has {ranks}; "
            f'set worker_gpus to {ranks}, or "distribution_type": "PyTorch" without slots_per_worker, so that '
            "master and workers have a rank for each GPU",
        )
        for gpus, ranks, distribution in (
            (2, 1, {"distribution_type": "Job", "worker_gpus": 2}),
            (4, 1, {"distribution_type": "PyTorch", "worker_gpus": 4, "slots_per_worker": 1}),
            (1, 2, {"distribution_type": "PyTorch", "worker_gpus": 1, "slots_per_worker": 2}),
        )
    ),
    (
        {"train_specification": {"trainer": "keras_clasifier"}},
        "train_specification: trainer is 'keras_clasifier'; allowed: keras_classifier, keras_horovod, "
        "torch_classifier, torch_horovod, language_model",
    ),
    ({"train_parameters": {"epoch": 3}}, "train_parameters: fit has no parameter 'epoch' to set; it has: epochs"),
    ({"train_parameters": {"epochs": "many"}}, "train_parameters of fit: epochs is 'many'; allowed is int"),
    (
        {"distribution_specification": workers(2) | {"tensorboard": True}},
        "tensorboard = true: fit writes no logs, it has no parameter tensorboard_dir",
    ),
    (
        {"distribution_specification": workers(6)},
        "train_dataset: 5 rows are too few for 6 ranks that read it; use fewer workers",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("trainer", "batch_size", "distribution", "ranks"),
    [
        ("keras_classifier", 1, workers(2), 2),
        ("keras_classifier", 7, workers(2) | {"worker_gpus": 4}, 8),
        ("torch_classifier", 2, {"distribution_type": "PyTorch", "number_of_workers": 2}, 3),
        ("torch_horovod", 7, {"distribution_type": "MPI", "number_of_workers": 4, "slots_per_worker": 2}, 8),
        ("keras_horovod", 4, {"distribution_type": "MPI", "number_of_workers": 3, "max_workers": 5}, 5),
        ("torch_classifier", None, {"distribution_type": "PyTorch", "number_of_workers": 40}, 41),
    ],
)
def test_a_batch_without_a_row_for_each_rank_is_refused(data, tmp_path, trainer, batch_size, distribution, ranks):
    changed = {
        "train_specification": {"trainer": trainer},
        "train_parameters": {"batch_size": batch_size} if batch_size else {},
        "distribution_specification": distribution,
    }
    message = f"train_parameters of {trainer}: batch_size is {batch_size or 32}, but {ranks} ranks "
    with pytest.raises(ValueError, match=f"^{message}"):
        launch(request(data, tmp_path, **changed), LocalRunner(), print)
    assert list(tmp_path.iterdir()) == []


def test_an_update_with_parameter_servers_belongs_to_one_worker(data, tmp_path):
    changed = {
        "train_specification": {"trainer": "keras_classifier"},
        "train_parameters": {"batch_size": 1},
        "distribution_specification": workers(2) | {"number_of_parameter_servers": 1},
    }
    assert plan_job(request(data, tmp_path, **changed)).description.parameters == {"batch_size": 1}


@pytest.mark.parametrize(("changed", "message"), INVALID)
def test_an_invalid_request_is_refused_before_anything_is_started_or_written(data, tmp_path, changed, message):
    log = []
    with pytest.raises(ValueError) as error:  # noqa: PT011  (the whole text is compared)
        launch(request(data, tmp_path, **changed), LocalRunner(), into(log))
    assert (str(error.value), log, list(tmp_path.iterdir())) == (message, [], [])


def test_a_step_that_is_cancelled_during_its_checks_leaves_nothing(data, tmp_path, cancel):
    class Cancelled(LocalRunner):
        def check(self, job):
            super().check(job)
            cancel()

    with pytest.raises(SystemExit) as end:
        launch(request(data, tmp_path), Cancelled(), print)
    assert (end.value.code, list(tmp_path.iterdir())) == (128 + signal.SIGTERM, [])


@pytest.mark.parametrize("field", ["train_uri", "validation_uri"])
def test_a_missing_dataset_is_named(data, tmp_path, field):
    with pytest.raises(StorageError, match=re.escape(str(tmp_path / "missing"))):
        launch(request(data, tmp_path, **{field: str(tmp_path / "missing")}), LocalRunner(), print)
    assert list(tmp_path.iterdir()) == []


def test_the_cause_of_a_failed_program_has_its_last_lines(data, tmp_path):
    cause = failure(request(data, tmp_path, train_specification=function("def fit(model_dir):\n    1 / 0\n")))
    *tail, last = cause.splitlines()
    assert re.fullmatch(r"\S+Z ERROR worker-\d ZeroDivisionError: division by zero", tail[-1])
    assert re.match(
        r"worker-\d failed with exit code 1, .* after the start of the job: ZeroDivisionError: division by zero\.", last
    )
    assert last.endswith(FOR_GOOD)


def test_a_killed_worker_restarts_the_job_from_its_checkpoint(data, tmp_path):
    source = f"""
def fit(checkpoint_dir, model_dir):
    import os, signal, time
    from pathlib import Path
    state = Path(checkpoint_dir, "state")
    print("state", state.read_text() if state.exists() else "none")
    if os.environ["KFP_DISTRIBUTED_REPLICA"] == "worker-1":
        kept = Path({str(tmp_path)!r}, "checkpoints")
        while not list(kept.glob("*/checkpoints/*.json")):
            time.sleep(0.1)
        try:
            Path({str(tmp_path)!r}, "once").mkdir()
        except FileExistsError:
            return
        time.sleep(1)  # The leader has begun to sleep by then.
        os.kill(os.getpid(), signal.SIGKILL)
    if not state.exists():
        state.write_text("of epoch 3")
        time.sleep(1000)
    Path(model_dir, "weights").write_text(state.read_text())
"""
    entries = []
    launch(request(data, tmp_path, train_specification=function(source)), LocalRunner(), StepLog(entries.append))
    log = [brief(entry) for entry in entries]
    assert [line for line in log if line.startswith("[worker-0] state")] == [
        "[worker-0] state none",
        "[worker-0] state of epoch 3",
    ]
    levels = {brief(entry): entry.level for entry in entries}
    assert levels["worker-1: failed (signal 9 (SIGKILL), often a lack of memory)"] == "ERROR"
    assert levels["restart 1 of 3: all replicas (worker-1 failed)"] == "WARNING"
    assert levels["worker-0: running"] == levels["the job succeeded"] == "INFO"
    assert (tmp_path / "model" / "weights").read_text() == "of epoch 3"


class FakeRunner:
    """A runner that yields the given facts."""

    def __init__(self, *facts):
        self._facts = iter(facts)

    def facts(self):
        return self._facts


def test_startup_messages_of_tensorflow_are_not_logged():
    runner = FakeRunner(
        LogLine(1, "worker-0", "I0000 00:00:1.2 7 port.cc:153] oneDNN custom operations are on. You may see"),
        LogLine(2, "worker-0", "F0000 00:00:1.2 7 cpu_feature_guard.cc:85] TensorFlow was compiled to use AVX"),
        ReplicaChanged(3, "worker-0", "failed", 134),
        JobEnded(4, False, "It failed."),
    )
    log = []
    status = follow_job(runner, make_job(["unused"], {}), into(log))
    assert [line for line in log if line.startswith("[")] == [
        "[worker-0] F0000 00:00:1.2 7 cpu_feature_guard.cc:85] TensorFlow was compiled to use AVX"
    ]
    assert "oneDNN" not in failure_cause(status)


def test_samples_are_recorded_but_not_logged():
    job = make_job(["unused"], {"silence_timeout": 60})
    runner = FakeRunner(
        ReplicaChanged(job_time := 1000.0, "worker-0", "running"),
        LogLine(job_time, "worker-0", "begun"),
        *(LogLine(job_time + second, "worker-0", "sample memory=512MiB rows/s=12") for second in (2, 12, 22, 32)),
        LogLine(job_time + 59, "worker-0", "10%|###      sample memory=513MiB"),
        Tick(job_time + 61),
        LogLine(job_time + 110, "worker-0", "sample memory=514MiB"),
        Tick(job_time + 169),
        Tick(job_time + 170),
    )
    log = []
    status = follow_job(runner, job, into(log))
    assert log[2:] == [
        "[worker-0] begun",
        "[worker-0] 10%|###      ",
        'the job failed: silence_timeout ran out after 1 min: worker-0: printed "10%|###" 1 min 51 s ago, '
        "last output 1 min ago.",
    ]
    assert [sample.memory_mib for sample in status.samples["worker-0"]] == [512] * 4 + [513, 514]
    assert status.samples["worker-0"][0] == ReplicaSample(job_time + 2, "worker-0", 512, 12)


def test_a_training_that_stalls_is_warned_of_once_and_ends_by_itself():
    """It hangs from 100 s to 4,000 s; then its samples stop for 400 s; then it hangs again."""

    def samples(begin, end, rows):
        for second in range(begin, end, 10):
            yield LogLine(second, "worker-0", f"sample memory=512MiB rows={rows or second}")
            yield Tick(second)

    runner = FakeRunner(
        ReplicaChanged(1, "worker-0", "running"),
        *samples(10, 101, 0),
        *samples(110, 4001, 100),
        *samples(4010, 4021, 0),
        *(Tick(second) for second in range(4030, 4421, 10)),
        *samples(4420, 6400, 4420),
        JobEnded(6400, True),
    )
    log = []
    status = follow_job(runner, make_job(["unused"], {}), into(log))
    assert [entry for entry in status.timeline if "no " in entry[1]] == [
        (
            1900,
            "no progress for 30 min: worker-0: read row 100 30 min ago, last output 0 s ago. "
            "Set progress_timeout to end such a training",
        ),
        (
            4320,
            "no line and no sample for 5 min from worker-0: the process has ended or is stopped, code that holds "
            "Python's lock runs, or the log cannot be read",
        ),
        (
            6220,
            "no progress for 30 min: worker-0: read row 4,420 30 min ago, last output 0 s ago. "
            "Set progress_timeout to end such a training",
        ),
    ]
    assert status.ended == JobEnded(6400, True)


def test_a_permanent_failure_of_a_rank_ends_the_job_although_the_launcher_restarts():
    later = JobEvent(5, "not read")
    runner = FakeRunner(
        LogLine(1, "worker-1", "ValueError: no such column"),
        LogLine(2, "launcher-0", "  Process name: [[51234,1],1]"),
        ReplicaChanged(3, "launcher-0", "failed", 1),
        ReplicaChanged(4, "launcher-0", "running", restart=1),
        Tick(4),
        later,
    )
    log = []
    status = follow_job(runner, make_job(["unused"], {"distribution_type": "MPI"}), into(log))
    assert status.ended == JobEnded(4, False, FOR_GOOD)
    assert log == [
        "checkpoints are stored in ",
        "[worker-1] ValueError: no such column",
        "[launcher-0]   Process name: [[51234,1],1]",
        "launcher-0: failed (exit code 1)",
        "launcher-0: running",
        f"the job failed: {FOR_GOOD}",
    ]
    assert list(runner.facts()) == [later]
    assert re.fullmatch(
        r"\S+ ERROR worker-1 ValueError: no such column\n\S+ ERROR launcher-0   Process name: \[\[51234,1\],1\]\n"
        r"launcher-0 failed with exit code 1, .* after the start of the job, as a process of worker-1 did: "
        r"ValueError: no such column\. " + re.escape(FOR_GOOD),
        failure_cause(status),
    )


def test_the_permanent_failure_of_a_rank_is_the_reason_although_the_restart_limit_is_reached():
    runner = FakeRunner(
        LogLine(2, "launcher-0", "  Process name: [[51234,1],1]"),
        ReplicaChanged(3, "launcher-0", "failed", 1),
        JobEnded(4, False, "Restart limit reached (restart_limit=1).", 3.5),
    )
    job = make_job(["unused"], {"distribution_type": "MPI", "restart_limit": 1})
    assert follow_job(runner, job, into([])).ended == JobEnded(4, False, FOR_GOOD, 3.5)


def test_a_step_that_is_repeated_after_its_model_was_saved_returns_the_model(data, tmp_path):
    """As the retry of a step that was killed after its job had ended and before KFP had recorded its outputs."""
    program = FIT["source"] + f"    with open('{tmp_path}/trainings', 'a') as file:\n        file.write('1')\n"
    repeated = request(data, tmp_path, train_specification=function(program))
    (first, _), (second, log) = run(repeated), run(repeated)
    assert (tmp_path / "trainings").read_text() == "1"
    assert (second.model, second.metrics["worker-0"][-1]["epoch"]) == (first.model, 1)
    assert second.status.ended.succeeded
    assert {replica.state for replica in second.status.replicas.values()} == {"stopped"}
    assert not [line for line in log if line.startswith("starting ")]


def test_a_failure_after_the_model_was_saved_is_no_failure_of_the_training(data, tmp_path):
    """The job fails after the leader has saved the model. The step succeeds, and its log has the failure."""
    late = FIT["source"].replace("        return\n", "        wait(model_dir)\n        raise ValueError('too late')\n")
    wait = f"""
def wait(model_dir):
    import os, time
    while not os.path.exists("{tmp_path}/model/model.json"):
        time.sleep(0.05)
"""

    class FailsInTheEnd(LocalRunner):
        def facts(self):
            for fact in super().facts():
                yield JobEnded(fact.time, False, "worker-1 failed.") if isinstance(fact, JobEnded) else fact

    log = []
    outcome = launch(request(data, tmp_path, train_specification=function(late + wait)), FailsInTheEnd(), into(log))
    assert outcome.model.job == job_name("train", ("run", "train", "1"))
    assert outcome.status.ended.succeeded
    assert "the job failed: worker-1 failed." in log
    assert [entry for entry in log if entry.startswith("the model is complete")] == log[-1:]


def test_a_saved_model_is_replaced_only_by_a_complete_one(data, tmp_path):
    """The upload of another model to the same folder breaks off. The earlier model stays complete."""
    outcome, _ = run(request(data, tmp_path, identity=("an earlier run",)))
    limited = """
    import resource
    Path(model_dir, "large").write_bytes(bytes(9999))
    resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99))
"""
    failure(request(data, tmp_path, train_specification=function(FIT["source"] + limited)))
    assert verify_model_folder(tmp_path / "model") == outcome.model


@pytest.mark.parametrize(
    ("earlier", "named"),
    [
        ({}, "model.json"),
        ({"identity": ("an earlier run",)}, repr(job_name("train", ("an earlier run",)))),
        ({"train_parameters": {"epochs": 2}}, "with another request"),
    ],
)
def test_success_without_a_model_is_a_failure(data, tmp_path, earlier, named):
    """The program of the replicas exits with 0 without saving a model. There may be one of another training."""

    class WithoutModel(LocalRunner):
        def check(self, job):
            super().check(replace(job, argv=(sys.executable, "-S", "-c", "print('well')")))

    model = tmp_path / "model"
    if earlier:
        run(request(data, tmp_path, **earlier))
    with pytest.raises(TrainingFailed) as error:
        launch(request(data, tmp_path), WithoutModel(), lambda line: None)
    assert str(error.value).startswith("The job succeeded, but left no complete model: ")
    assert str(model) in str(error.value)
    assert named in str(error.value)


def test_a_model_that_cannot_be_read_is_not_reported_as_missing(data, tmp_path, monkeypatch):
    monkeypatch.setitem(launch.__globals__, "STORE_SECONDS", 1)
    (tmp_path / "objects" / "bucket").mkdir(parents=True)
    with ExitStack() as running:
        server = running.enter_context(embedded_object_store(tmp_path / "objects"))
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)

        class StopsTheStore(LocalRunner):
            def stop(self):
                super().stop()
                running.close()

        uris = {"model_uri": "s3://bucket/model", "checkpoint_uri": str(tmp_path)}
        with pytest.raises(TrainingFailed) as error:
            launch(request(data, tmp_path, **uris), StopsTheStore(), lambda line: None)
    start = "The job succeeded, but its model could not be read: "
    assert re.match(rf"{start}.*bucket.*model", str(error.value)), error.value
    assert error.value.metrics["worker-0"][-1]["loss"] == 0.5


def test_a_missing_bucket_is_refused_before_anything_starts(data, tmp_path, monkeypatch):
    class NeverStarted(LocalRunner):
        def start(self, job):
            pytest.fail("the job was started")

    with embedded_object_store(tmp_path / "objects") as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        uri = "s3://bukcet/jobs"
        with pytest.raises(ValueError, match=rf"^checkpoint_uri='{uri}' names the bucket 'bukcet', which"):
            launch(request(data, tmp_path, checkpoint_uri=uri), NeverStarted(), lambda line: None)
    assert list((tmp_path / "objects").iterdir()) == []


def test_the_same_request_is_always_the_same_job(data, tmp_path):
    first, second = (plan_job(request(data, tmp_path)) for _ in range(2))
    assert first == second
    assert json.loads(first.description.to_json())["data_replicas"] == ["worker-0", "worker-1"]


texts = st.text(max_size=80) | st.from_regex(r"[a-zA-Z0-9-]{0,80}", fullmatch=True)


@settings(max_examples=300)
@given(texts, st.tuples(texts, texts, texts), st.tuples(texts, texts, texts))
def test_a_job_name_is_a_label_that_is_unique_to_its_identity(task, identity, other):
    name = job_name(task, identity)
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert len(name) <= 43
    assert name == job_name(task, list(identity))
    assert (name == job_name(task, other)) == (identity == other)


@pytest.mark.parametrize(
    ("task", "readable"),
    [
        ("train", "train"),
        ("Train.My_Model", "train-my-model"),
        ("7-th", "train-7-th"),
        ("…", "train"),
        ("x" * 70, "x" * 30),
        ("a" * 29 + "-b", "a" * 29),
    ],
)
def test_a_job_name_starts_with_the_name_of_the_task(task, readable):
    assert re.fullmatch(f"{readable}-[0-9a-f]{{12}}", job_name(task, ("run",)))


def test_invalid_metrics_are_ignored(tmp_path):
    epochs = [{"epoch": 1, "loss": 2, "note": "warm-up"}, {"epoch": 2, "loss": 0.5}]
    (tmp_path / "training.json").write_text(json.dumps({"replica": "worker-0", "epochs": epochs}))
    (tmp_path / "evaluator.json").write_text('{"replica": "evaluator-0", "epochs": [{"epoch": "first"}]}')
    assert read_metrics(str(tmp_path)) == {"worker-0": [{"epoch": 1, "loss": 2}, {"epoch": 2, "loss": 0.5}]}
