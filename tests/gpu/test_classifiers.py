"""torch_classifier over NCCL, and keras_classifier with MirroredStrategy."""

from importlib.util import find_spec

import numpy as np
import pytest
from samples import CLASSES, COLUMNS, table, write_dataset
from trainings import ON_GPU, train

from kfp_distributed.trainers import train_specification

PARAMETERS = {"epochs": 3, "batch_size": 32, "learning_rate": 0.01, "hidden_units": [16]}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    for split, rows in (("train", 320), ("validation", 96)):
        arrays, labels = table(rows, seed=rows)
        write_dataset(folder / split, COLUMNS, arrays, labels, CLASSES, [rows], split)
    return folder


def test_the_losses_of_torch_classifier_are_those_of_a_cpu(data, tmp_path, monkeypatch):
    """Both compute with float32 and without TensorFloat-32, the default of PyTorch, so that only roundings differ."""
    pytest.importorskip("onnx")
    specification = train_specification("torch_classifier")
    on_gpu = train(data, tmp_path / "gpu", specification, PARAMETERS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    on_cpu = train(data, tmp_path / "cpu", specification, PARAMETERS)
    assert "rank 0 of 1 on cpu" in on_cpu.log
    assert ("rank 0 of 1 on cuda" in on_gpu.log) == ON_GPU
    assert on_gpu.rows[-1]["val_loss"] < on_gpu.rows[0]["val_loss"]
    for epoch, expected in zip(on_gpu.rows, on_cpu.rows, strict=True):
        assert epoch["loss"] == pytest.approx(expected["loss"], rel=5e-3)
        assert epoch["val_loss"] == pytest.approx(expected["val_loss"], rel=5e-3)


def mirrored(train_dir: str, validation_dir: str, model_dir: str, checkpoint_dir: str, metrics_dir: str) -> None:
    """Train keras_classifier on two parts of the first GPU, or of the CPU."""
    import tensorflow as tf

    from kfp_distributed.trainers.keras_classifier import keras_classifier
    from kfp_distributed.trainers.programs.training_parameters import TrainingParameters

    gpus = tf.config.list_physical_devices("GPU")
    part = tf.config.LogicalDeviceConfiguration(memory_limit=2048 if gpus else None)
    tf.config.set_visible_devices(gpus[:1], "GPU")
    tf.config.set_logical_device_configuration((gpus or tf.config.list_physical_devices("CPU"))[0], [part] * 2)
    keras_classifier(
        train_dir, validation_dir, model_dir, checkpoint_dir, metrics_dir, "", TrainingParameters(3, 32, 0.01, [16])
    )
    strategy = tf.distribute.MirroredStrategy()
    print("trained on", *strategy.extended.worker_devices, flush=True)


def test_keras_classifier_trains_with_mirrored_strategy(data, tmp_path):
    if missing := [module for module in ("tensorflow", "tf_keras") if find_spec(module) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if ON_GPU:
        import tensorflow as tf

        if not tf.config.list_physical_devices("GPU"):
            pytest.skip(f"tensorflow {tf.__version__} finds no GPU")
    training = train(data, tmp_path, train_specification(mirrored), {})
    device = "GPU" if ON_GPU else "CPU"
    assert f"device:{device}:0" in training.log
    assert f"device:{device}:1" in training.log
    val_losses = [epoch["val_loss"] for epoch in training.rows]
    assert np.isfinite(val_losses).all()
    assert val_losses[-1] < val_losses[0]
