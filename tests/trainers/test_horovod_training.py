"""keras_horovod and other programs in the ranks of an MPI job, which mpirun or horovodrun starts on this machine."""

import os
import re
import shutil
import signal
from functools import partial
from pathlib import Path

import mpi_jobs
import numpy as np
import pytest
from environments import trainer_python
from evaluations import evaluate_model
from forked_replicas import SITE_VARIABLE, forked
from held_training import HELD, hold
from mpi_jobs import kill_rank

from kfp_distributed.storage.dataset import DatasetManifest, read_batches
from kfp_distributed.trainers.runtime.data_loading.epoch_steps import plan_epoch
from kfp_distributed.trainers.runtime.job_description import STORE_AWAY

pytestmark = pytest.mark.takes(60)

train = partial(mpi_jobs.train, program={"trainer": "keras_horovod"})
EPOCHS, KILLED, EXACT = 14, 4, 1e-3
"""Number of epochs of the compared trainings, the epoch in which a rank is killed, and relative tolerance of each
metric after each epoch. The sums of several ranks have other rounding errors, which add up to 2e-4."""

# Python runs this first in each rank. It writes each record of the input pipeline to a file.
NOTING = """
import os
from pathlib import Path
exec(compile(Path("SITE", "sitecustomize.py").read_text(), "sitecustomize.py", "exec"))
if "KFP_DISTRIBUTED_JOB" in os.environ:
    import numpy as np
    from kfp_distributed.trainers.runtime.data_loading import row_dataset
    dataset_of_rows = row_dataset.dataset_of_rows

    def note(*record):
        with Path(os.environ["TESTS_NOTES"], "rank-" + os.environ["OMPI_COMM_WORLD_RANK"]).open("ab") as notes:
            notes.write(np.column_stack(record).astype("<f4").tobytes())
        return np.int64(0)

    def noted(*record):
        import tensorflow as tf
        with tf.control_dependencies([tf.numpy_function(note, record, tf.int64)]):
            return tuple(map(tf.identity, record))

    row_dataset.dataset_of_rows = lambda *arguments: dataset_of_rows(*arguments).map(noted)
"""


@pytest.fixture(autouse=True)
def python(monkeypatch):
    interpreter = trainer_python("horovod")
    monkeypatch.setenv("KFP_DISTRIBUTED_HOROVOD_PYTHON", interpreter)
    return interpreter


def noted_rows(folder, start, epochs):
    """Return the rows that both ranks saw in each epoch after one of their starts: an array for each rank."""
    records = plan_epoch(1299, 1500, 2).records
    noted = [np.fromfile(folder / start / f"rank-{rank}", "<f4").reshape(-1, 66) for rank in (0, 1)]
    # The pipeline may have fetched more rows than were used. Rows of weight 0 are fillers.
    seen = [rows[: records * epochs].reshape(epochs, records, 66) for rows in noted]
    return [[part[epoch][part[epoch][:, -1] == 1, :-1] for part in seen] for epoch in range(epochs)]


def in_order(rows):
    return rows[np.lexsort(rows.T)]


WHOLE_BATCHES = {"epochs": EPOCHS, "batch_size": 1500, "learning_rate": 0.03}
"""Parameters with which each step has all rows, for any number of ranks."""


def epochs_of(lines):
    """Return the worker and the epoch of each progress line. Only rank 0 prints them."""
    return [(match[1], int(match[2])) for line in lines if (match := re.match(r"\[(.*)\] epoch (\d+)/", line))]


def test_two_ranks_learn_as_one_process_though_one_of_them_is_killed(odd_digits, tmp_path, monkeypatch):
    """The ranks have uneven parts and start with the weights of rank 0. Then a checkpoint has weights and optimizer."""
    alone, _ = train(odd_digits, tmp_path / "alone", 1, parameters=WHOLE_BATCHES)
    expected = alone.metrics["worker-0"]
    hold(monkeypatch, tmp_path, KILLED)  # A leader with one step in an epoch asks when it scores.
    for start in ("first", "second"):
        (tmp_path / start).mkdir()
    (tmp_path / "sitecustomize.py").write_text(NOTING.replace("SITE", os.environ[SITE_VARIABLE]))
    monkeypatch.setenv(SITE_VARIABLE, str(tmp_path))
    monkeypatch.setenv("TESTS_NOTES", str(tmp_path / "first"))

    def kill_held(line):
        if HELD in line:
            monkeypatch.setenv("TESTS_NOTES", str(tmp_path / "second"))
            kill_rank("1")

    parameters = {**WHOLE_BATCHES, "learning_rate": 0.015, "scale_learning_rate": True}
    both, lines = train(odd_digits, tmp_path, 2, see=kill_held, parameters=parameters, tensorboard=True)
    assert any("restart 1 of 3: all replicas (launcher-0 failed)" in line for line in lines)
    # Only rank 0 prints and saves.
    assert epochs_of(lines) == [("worker-0", epoch) for epoch in range(1, EPOCHS + 1)], "no epoch comes again"
    assert both.model.format == "saved_model"
    for epoch, expected_epoch in zip(both.metrics["worker-0"], expected, strict=True):
        assert epoch == pytest.approx(expected_epoch, rel=EXACT)
    assert expected[-1]["loss"] < expected[0]["loss"] / 4
    assert expected[-1]["val_accuracy"] > 0.9
    manifest = DatasetManifest.from_json((odd_digits.folder / "train" / "dataset.json").read_text())
    batches = read_batches(odd_digits.folder / "train", manifest)
    every_row = in_order(np.concatenate([np.column_stack(batch) for batch in batches]))
    # Rank 0 saves the only step of the epoch in which it was held if mpirun lets it.
    pattern = r"continues (?:after )?epoch ([1-9]\d*)"
    done = int(next(match[1] for line in lines if (match := re.search(pattern, line))))
    before, after = noted_rows(tmp_path, "first", KILLED - 1), noted_rows(tmp_path, "second", EPOCHS - done)
    for parts in before + after:
        assert [len(part) for part in parts] == [649, 650]
        np.testing.assert_array_equal(in_order(np.concatenate(parts)), every_row, err_msg="each row once an epoch")
    logs = tmp_path.glob("checkpoints/*/metrics/tensorboard/*/*.v2")
    assert {file.parent.name for file in logs} == {"train", "validation"}
    # The evaluation, with another version of TensorFlow, has the same results as the training.
    evaluation, _ = evaluate_model(tmp_path / "model", odd_digits.folder / "validation")
    assert evaluation.scores.accuracy == pytest.approx(both.metrics["worker-0"][-1]["val_accuracy"])


def test_a_training_loses_no_step_when_a_rank_is_preempted(digits, tmp_path, monkeypatch):
    hold(monkeypatch, tmp_path, 10 + 4)

    def end_held(line):
        if HELD in line:
            kill_rank("1", signal.SIGTERM)

    _, lines = train(digits, tmp_path, 2, see=end_held, parameters={"epochs": 3, "batch_size": 130})
    assert re.findall(r"saved a checkpoint in epoch (\d) after step (\d+)", "\n".join(lines)) == [("2", "4")]
    assert re.findall(r"continues epoch (\d) after step (\d+) of 10", "\n".join(lines)) == [("2", "4")] * 2
    assert epochs_of(lines) == [("worker-0", epoch) for epoch in range(1, 4)]


# A program of somebody who does not know this library.
STRANGER = """
import os, sys
from pathlib import Path
import numpy as np
import pyarrow.parquet as pq
import horovod.tensorflow as hvd
import tensorflow as tf

data, out = sys.argv[1:3]
hvd.init()
table = pq.read_table(sorted(Path(data).glob("*.parquet")))
x = np.stack(table["image"].to_numpy(zero_copy_only=False)).astype("float32") / 16
y = table["label"].to_numpy()
weights = tf.Variable(tf.zeros([64, 10]))
for step in range(60):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ weights))
    weights.assign_sub(2.0 * hvd.allreduce(tape.gradient(loss, weights)))
print("rank", os.environ["OMPI_COMM_WORLD_RANK"], "has", len(y), "rows, loss", float(loss))
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    np.save(Path(out, "weights.npy"), weights.numpy())
"""


def test_a_program_that_does_not_use_the_library(digits, tmp_path, python):
    file = tmp_path / "main.py"
    file.write_text(STRANGER)
    program = {"command": forked(python, file, "{train_dir}", "{model_dir}")}
    outcome, lines = train(digits, tmp_path, 2, program=program)
    assert [entry.path for entry in outcome.model.files] == ["weights.npy"]
    weights = np.load(tmp_path / "model" / "weights.npy")
    predictions = (digits.test_inputs.reshape(-1, 64) / 16 @ weights).argmax(axis=1)
    assert (predictions == digits.test_labels).mean() > 0.85
    assert {line.split(" rows")[0] for line in lines if " rows, loss" in line} == {
        "[worker-0] rank 0 has 650",
        "[worker-1] rank 1 has 650",
    }


def test_a_rank_that_starts_after_the_model_was_saved_runs_too(digits, tmp_path, python, monkeypatch):
    """The ranks of a program that does not communicate wait for none of the others."""
    late = tmp_path / "python"
    late.write_text(f"""#!/bin/sh
[ "$OMPI_COMM_WORLD_RANK" != 1 ] || until [ -e "{tmp_path}/model/model.json" ]; do sleep 0.1; done
exec "{python}" "$@"
""")
    late.chmod(0o755)
    monkeypatch.setenv("KFP_DISTRIBUTED_HOROVOD_PYTHON", str(late))
    monkeypatch.setenv("PATH", f"{Path(python).parent}:{os.environ['PATH']}")
    program = {"command": ["sh", "-c", "echo ran; touch {model_dir}/weights"]}
    outcome, lines = train(digits, tmp_path, 2, program=program)
    assert [entry.path for entry in outcome.model.files] == ["weights"]
    assert {line for line in lines if line.endswith("ran")} == {"[worker-0] ran", "[worker-1] ran"}


# Rank 1 of the first start ends as after an outage of the object store, while rank 0 trains.
ENDS_IN_AN_OUTAGE = f"""
def fit(model_dir, folder: str):
    import os, time
    from pathlib import Path
    begun, ended = Path(folder, "begun"), Path(folder, "ended")
    if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
        if not begun.exists():
            begun.touch()
            time.sleep(300)
        Path(model_dir, "weights").touch()
    while not begun.exists():
        time.sleep(0.05)
    if not ended.exists():
        ended.touch()
        os._exit({STORE_AWAY})
"""


def test_an_outage_of_the_object_store_counts_for_no_limit(digits, tmp_path):
    program, parameters = {"function": "fit", "source": ENDS_IN_AN_OUTAGE}, {"folder": str(tmp_path)}
    outcome, lines = train(digits, tmp_path, 2, program=program, parameters=parameters, restart_limit=0)
    assert [entry.path for entry in outcome.model.files] == ["weights"]
    assert [line for line in lines if line.startswith("restart")] == [
        "restart: all replicas (launcher-0: the object store did not answer)"
    ]


def test_gloo_is_used_without_openmpi(digits, tmp_path, python, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "env", "true"):
        (folder / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(folder))
    for name, program in {"python": python, "horovodrun": str(Path(python).with_name("horovodrun"))}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec "{program}" "$@"\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("KFP_DISTRIBUTED_HOROVOD_PYTHON", str(folder / "python"))
    program = {"command": ["python", "-c", "import os; print('size', os.environ['HOROVOD_SIZE']); os._exit(3)"]}
    with pytest.raises(Exception, match="launcher-0 failed with exit code 3"):
        train(digits, tmp_path / "failed", 2, program=program)
    program = {"command": ["sh", "-c", "echo rank $HOROVOD_RANK of $HOROVOD_SIZE; : > {model_dir}/weights"]}
    outcome, lines = train(digits, tmp_path, 2, program=program)
    assert [entry.path for entry in outcome.model.files] == ["weights"]
    assert {f"[worker-{rank}] rank {rank} of 2" for rank in range(2)} <= {*lines}
