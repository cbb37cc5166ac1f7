"""Elastic MPI jobs of the local runner: ranks are killed while they train, and the others continue."""

import re
from itertools import groupby, pairwise

import pytest
from environments import trainer_python
from forked_replicas import SITE_VARIABLE
from mpi_jobs import train
from replicas import kill_replica

from kfp_distributed.components.train.run.launch import TrainingFailed
from kfp_distributed.storage import open_store

pytestmark = pytest.mark.takes(35)

EPOCHS = 6
TRAINER = {"trainer": "keras_horovod"}


# Python runs this first in each rank. Rank 0 is held after epoch 3 before the others know it. So no training ends
# before a test has killed its victim. Nobody asks whether an elastic job must end.
HOLD = """
import os, time
from pathlib import Path
if "HOROVOD_HOSTNAME" in os.environ:
    from kfp_distributed.trainers.runtime.outputs import epoch_metrics
    record, worker = epoch_metrics.record_epoch, os.environ["HOROVOD_HOSTNAME"]
    released = Path(__file__).with_name("released")

    def record_and_wait(file, replica, epoch, *others):
        record(file, replica, epoch, *others)
        if epoch >= 3 and not released.exists():
            print("held on", worker, flush=True)
            while not released.exists():
                time.sleep(0.02)

    epoch_metrics.record_epoch = record_and_wait
"""


@pytest.fixture
def run(digits, tmp_path, monkeypatch):
    """Return a function that runs an elastic job and kills a victim while rank 0 is held; returns outcome and lines."""
    monkeypatch.setenv("KFP_DISTRIBUTED_HOROVOD_PYTHON", trainer_python("horovod"))

    def run_one(program, victim="", workers=2, **distribution):
        if victim:
            (tmp_path / "sitecustomize.py").write_text(HOLD)
            monkeypatch.setenv(SITE_VARIABLE, str(tmp_path))

        def show(line):
            if victim and "held on worker-0" in line:
                kill_replica(victim, "HOROVOD_HOSTNAME")
                (tmp_path / "released").touch()

        parameters = {"epochs": EPOCHS, "batch_size": 128, "learning_rate": 0.01} if program is TRAINER else {}
        return train(digits, tmp_path, workers, program=program, see=show, parameters=parameters, **distribution)

    return run_one


def epochs(lines):
    """Return the worker and the epoch of each progress line."""
    return [(match[1], int(match[2])) for line in lines if (match := re.match(r"\[(.*)\] epoch (\d+)/", line))]


def starts_of_ranks(lines):
    """Return for each start of a rank: number of ranks, rank, rows, epoch after which it continues."""
    pattern = r"\[.*\] rank (\d) of (\d) has (\d+) rows and continues after epoch (\d+)"
    matches = [tuple(map(int, match.groups())) for line in lines if (match := re.match(pattern, line))]
    return [(size, rank, rows, epoch) for rank, size, rows, epoch in matches]


def test_the_other_rank_continues_when_rank_0_dies_and_saves(run):
    outcome, lines = run(TRAINER, "worker-0", min_workers=1, restart_limit=0)
    assert not any("restart" in line for line in lines), lines
    shown = epochs(lines)
    # Only the epoch that was interrupted may be repeated.
    assert sorted({epoch for _, epoch in shown}) == list(range(1, EPOCHS + 1))
    assert all(after >= before for (_, before), (_, after) in pairwise(shown)), shown
    # Rank 0 was worker-0, and then the remaining worker.
    assert [worker for worker, _ in groupby(worker for worker, _ in shown)] == ["worker-0", "worker-1"]
    starts = {size: sorted(ranks) for size, ranks in groupby(starts_of_ranks(lines), lambda start: start[0])}
    assert list(starts) == [2, 1], "a new ring after the death"
    for size, ranks in starts.items():
        assert [rank for _, rank, _, _ in ranks] == list(range(size))
        assert sum(rows for _, _, rows, _ in ranks) == 1300, "each row belongs to a rank"
        assert len({epoch for _, _, _, epoch in ranks}) == 1
    (recorded,) = outcome.metrics.values()
    assert [entry["epoch"] for entry in recorded] == list(range(1, EPOCHS + 1)), "with those of the first rank 0"
    assert recorded[-1]["val_accuracy"] > 0.9
    assert outcome.model.format == "saved_model"
    assert sum(" saved to " in line for line in lines) == 1


def test_all_ranks_restart_if_too_few_are_left(run):
    outcome, lines = run(TRAINER, "worker-1", min_workers=2, restart_limit=1)
    assert "[launcher-0] 1 workers are left, which is fewer than min_workers=2" in lines
    assert "restart 1 of 1: all replicas (launcher-0 failed)" in lines
    shown = [epoch for _, epoch in epochs(lines)]
    assert sorted(set(shown)) == list(range(1, EPOCHS + 1))
    assert all(after >= before for before, after in pairwise(shown)), shown
    assert len(next(iter(outcome.metrics.values()))) == EPOCHS


def test_a_command_that_fails(run):
    program = {"command": ["python", "-c", "import os; print('no such column', flush=True); os._exit(3)"]}
    cause = r"(?s)no such column.*launcher-0 failed with exit code 3.*as a process of worker-\d did"
    with pytest.raises(TrainingFailed, match=cause):
        run(program, min_workers=1, slots_per_worker=2)


FAULT = """
def fit(train_dir, validation_dir, model_dir, checkpoint_dir, metrics_dir):
    import tensorflow as tf
    from kfp_distributed.trainers import keras_horovod as trainer
    from kfp_distributed.trainers.programs.training_parameters import TrainingParameters

    record = trainer.record_epoch

    def keep(file, replica, epoch, *others):
        if epoch == 2:
            raise tf.errors.UnknownError(None, None, "Input/output error")
        record(file, replica, epoch, *others)

    trainer.record_epoch = keep
    folders = train_dir, validation_dir, model_dir, checkpoint_dir, metrics_dir, ""
    trainer.keras_horovod(*folders, TrainingParameters(epochs=3))
"""


def test_a_training_that_horovod_ends_early_has_not_succeeded(run):
    with pytest.raises(TrainingFailed, match="Horovod ended the training after epoch 1 of 3"):
        run({"function": "fit", "source": FAULT}, workers=1, min_workers=1, restart_limit=0)


SAVE = """
import os, pathlib, sys
train, model = map(pathlib.Path, sys.argv[1:])
if os.environ["HOROVOD_RANK"] == "0":
    model.joinpath("seen").write_text(f'{os.environ["HOROVOD_SIZE"]} {len(list(train.glob("*.parquet")))}')
"""


def test_rank_0_saves_the_model_and_each_rank_has_all_rows(run, tmp_path):
    outcome, lines = run({"command": ["python", "-c", SAVE, "{train_dir}", "{model_dir}"]}, max_workers=3)
    assert [file.path for file in outcome.model.files] == ["seen"]
    assert open_store(str(tmp_path / "model")).read("seen") == b"2 4"
    assert sum(" saved to " in line for line in lines) == 1
