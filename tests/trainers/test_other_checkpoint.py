"""keras_classifier resumes only from a checkpoint of the same network, columns and classes."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from samples import CLASSES, COLUMNS, table

pytestmark = pytest.mark.takes(20)

ROWS = 60
SIZE, COLOR, SHOP, SIGNAL = COLUMNS


@pytest.fixture(scope="module")
def trained(tmp_path_factory, write_dataset):
    """A training of two epochs with the hidden layer [16]: its folders by name."""
    root = tmp_path_factory.mktemp("trained")
    write_dataset(root / "train_dir", COLUMNS, *table(ROWS, 0), CLASSES, [ROWS])
    train(root, 2)
    return root


@pytest.fixture
def resumed(trained, tmp_path, monkeypatch):
    """A copy of the training, to resume from."""
    root = tmp_path / "resumed"
    shutil.copytree(trained, root)
    return root


def train(root, epochs, hidden_units=(16,), **parameters):
    from kfp_distributed.trainers.keras_classifier import keras_classifier
    from kfp_distributed.trainers.programs.training_parameters import TrainingParameters

    names = ("model_dir", "checkpoint_dir", "metrics_dir")
    shutil.rmtree(root / "model_dir", ignore_errors=True)
    for name in names:
        (root / name).mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.delenv("TF_CONFIG", raising=False)
        folders = {name: str(root / name) for name in ("train_dir", *names)}
        trained = TrainingParameters(epochs, 30, hidden_units=list(hidden_units), **parameters)
        keras_classifier(**folders, validation_dir="", tensorboard_dir="", parameters=trained)


def content(folder):
    return {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def prepare(root, write_dataset, columns, classes):
    """Replace the training dataset by one of the first columns."""
    arrays, labels = table(ROWS, 1)
    shutil.rmtree(root / "train_dir")
    write_dataset(root / "train_dir", columns, arrays[: len(columns)], labels, classes, [ROWS])


@pytest.mark.parametrize(
    ("hidden_units", "columns", "classes", "named"),
    [
        ([16, 3], COLUMNS, CLASSES, ("hidden_units", "[16]", "[16, 3]")),
        ([16], COLUMNS[:3], CLASSES, ("9", "inputs", "3")),
        ([16], COLUMNS, [*CLASSES, "d"], ("3", "classes", "4")),
        ([16], [SIZE, COLOR, replace(SHOP, vocabulary=SHOP.vocabulary[1:]), SIGNAL], CLASSES, ("[3, 41]", "[3, 40]")),
        ([16], [SIZE, replace(COLOR, vocabulary=("red", "blue")), SHOP, SIGNAL], CLASSES, ("color", "blue", "red")),
    ],
    ids=["layer", "inputs", "classes", "values", "vocabulary"],
)
def test_a_checkpoint_of_another_network_is_refused(resumed, write_dataset, hidden_units, columns, classes, named):
    prepare(resumed, write_dataset, columns, classes)
    before = content(resumed / "checkpoint_dir")
    with pytest.raises(SystemExit) as raised:
        train(resumed, 4, hidden_units)
    assert [word for word in named if word not in str(raised.value)] == []
    assert content(resumed / "checkpoint_dir") == before
    assert content(resumed / "model_dir") == {}


def test_a_checkpoint_without_a_description_of_its_data_is_compared_by_its_weights(resumed):
    (resumed / "checkpoint_dir" / "data.json").unlink()
    with pytest.raises(SystemExit, match=r"\[16\].*\[16, 3\]"):
        train(resumed, 4, [16, 3])
    train(resumed, 3)
    assert [entry["epoch"] for entry in epochs(resumed)] == [1, 2, 3]


def test_a_checkpoint_of_another_program_is_refused(resumed):
    shutil.rmtree(resumed / "checkpoint_dir")
    (resumed / "checkpoint_dir").mkdir()
    (resumed / "checkpoint_dir" / "checkpoint.pt").write_bytes(b"weights")
    with pytest.raises(SystemExit, match=r"'checkpoint\.pt'"):
        train(resumed, 4)
    assert content(resumed / "checkpoint_dir") == {Path("checkpoint.pt"): b"weights"}


def test_a_checkpoint_of_another_optimizer_is_refused(resumed, tmp_path):
    import tf_keras

    from kfp_distributed.trainers.epochs.position import Position
    from kfp_distributed.trainers.keras_training.keras_fit import compile_model, keep_checkpoints
    from kfp_distributed.trainers.keras_training.keras_model import build_model
    from kfp_distributed.trainers.runtime.data_loading.epoch_steps import read_manifest

    manifest = read_manifest(str(resumed / "train_dir"))

    def restore(optimizer):
        model = build_model(manifest, [16])
        compile_model(model, optimizer, 1, "classification")
        return keep_checkpoints(model, str(tmp_path / "own"), manifest)

    done, save = restore(tf_keras.optimizers.SGD())
    save(Position(3))
    assert (done.epoch, restore(tf_keras.optimizers.SGD())[0].epoch) == (0, 3)
    with pytest.raises(SystemExit, match="optimizer"):
        restore(tf_keras.optimizers.Adam())


def test_the_evaluator_refuses_it_as_well(resumed):
    import tensorflow as tf

    from kfp_distributed.trainers.keras_training.keras_fit import check_network
    from kfp_distributed.trainers.keras_training.keras_model import build_model
    from kfp_distributed.trainers.runtime.data_loading.epoch_steps import read_manifest

    path, manifest = tf.train.latest_checkpoint(resumed / "checkpoint_dir"), read_manifest(str(resumed / "train_dir"))
    check_network(build_model(manifest, [16]), path)
    for other in ([16, 3], [], [8]):
        with pytest.raises(SystemExit, match=re.escape(f"hidden_units [16], now {other}")):
            check_network(build_model(manifest, other), path)


def test_numbers_are_scaled_with_the_statistics_of_the_new_data(resumed, write_dataset, capsys):
    prepare(resumed, write_dataset, [replace(SIZE, mean=600.0, std=50.0), COLOR, SHOP, SIGNAL], CLASSES)
    train(resumed, 3)
    lines = [line for line in capsys.readouterr().out.splitlines() if " size " in line]
    assert len(lines) == 1
    assert [number for number in ("500", "600", "100", "50") if number not in lines[0]] == []
    assert "signal" not in lines[0]


def test_without_an_epoch_to_train_the_model_is_saved_as_it_is(resumed, capsys):
    folders = ("checkpoint_dir", "metrics_dir")
    before = [content(resumed / name) for name in folders]
    train(resumed, 1)
    line = capsys.readouterr().out
    assert "2 finished epochs and epochs is 1" in line
    assert [content(resumed / name) for name in folders] == before
    assert (resumed / "model_dir" / "saved_model.pb").exists()


def epochs(root):
    return json.loads((root / "metrics_dir" / "training.json").read_text())["epochs"]


def text_of(capsys):
    return capsys.readouterr().out


def best_files(root):
    return sorted(file.name for file in (root / "checkpoint_dir").glob("best.*"))


def test_a_training_that_has_ended_early_trains_no_epoch_when_it_is_resumed(resumed, capsys):
    """The checkpoint is of a version that had no best epoch. The best one is the first that counts, the third."""
    options = {"learning_rate": 1e-12, "keep": "best", "metric": "accuracy", "patience": 2}
    train(resumed, 9, **options)
    ends = "the training ends after epoch 5 of 9: accuracy has not improved for 2 epochs, and patience is 2"
    best = "the model is that of epoch 3 of 5 (accuracy "
    printed = text_of(capsys)
    assert "the checkpoint does not say which epoch is the best; only epochs after 2 count" in printed
    assert (ends in printed, best in printed) == (True, True), printed
    assert [entry["epoch"] for entry in epochs(resumed)] == [1, 2, 3, 4, 5]
    assert best_files(resumed) == ["best.json", "best.npz"]
    before = content(resumed / "checkpoint_dir")

    train(resumed, 9, **options)
    printed = text_of(capsys)
    assert (ends in printed, best in printed) == (True, True), printed
    assert "epoch 6/9" not in printed
    assert content(resumed / "checkpoint_dir") == before
    assert (resumed / "model_dir" / "saved_model.pb").exists()

    train(resumed, 6, **{**options, "keep": "last", "patience": 3})
    assert re.search(r"the model is that of epoch 6, the last; the best was epoch [36] \(accuracy ", text_of(capsys))
    assert best_files(resumed) == ["best.json"], "the weights are only kept if they may become the model"
    train(resumed, 7, learning_rate=1e-12)
    assert "the model is that of" not in text_of(capsys)
    assert best_files(resumed) == []
