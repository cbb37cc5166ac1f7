"""A training function of your own, in a pipeline that prepares data, trains and evaluates."""

from kfp import dsl

from kfp_distributed.components import evaluate, prepare_data, train
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.trainers import train_specification


def fit(train_dir: str, model_dir: str, metrics_dir: str, epochs: int = 5, hidden_units: int = 32) -> None:
    """Train a network on the rows of train_dir and save it to model_dir."""
    from pathlib import Path

    import numpy as np
    import tensorflow as tf
    import tf_keras

    from kfp_distributed.storage.dataset import DatasetManifest, input_shape, read_batches
    from kfp_distributed.trainers.sync import record_epoch

    manifest = DatasetManifest.from_json(Path(train_dir, "dataset.json").read_text())
    batches = list(read_batches(Path(train_dir), manifest))
    inputs, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    shape = input_shape(manifest)

    model = tf_keras.Sequential(
        [
            # A missing number is NaN. This layer replaces it by 0, in the training and in the saved model.
            tf_keras.layers.Lambda(lambda x: tf.where(tf.math.is_nan(x), 0.0, x), input_shape=shape),
            tf_keras.layers.Flatten(),
            tf_keras.layers.BatchNormalization(),
            tf_keras.layers.Dense(hidden_units, "relu"),
            tf_keras.layers.Dense(len(manifest.label.classes), "softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

    def end_epoch(epoch: int, logs: dict[str, float]) -> None:
        record_epoch(Path(metrics_dir, "training.json"), "worker-0", epoch + 1, epochs, logs)

    callback = tf_keras.callbacks.LambdaCallback(on_epoch_end=end_epoch)
    model.fit(inputs.reshape(-1, *shape), labels, epochs=epochs, verbose=0, callbacks=[callback])
    model.export(model_dir)


@dsl.pipeline
def train_with_own_function(epochs: int = 5) -> float:
    """Train with the function fit, and return the accuracy on the test dataset."""
    data = prepare_data(source="digits")
    training = train(
        train_dataset=data.outputs["train_dataset"],
        train_specification=train_specification(fit),
        train_parameters={"epochs": epochs, "hidden_units": 64},
    )
    scores = evaluate(model=training.outputs["model"], dataset=data.outputs["test_dataset"])
    return scores.outputs["score"]


if __name__ == "__main__":
    with local_run("own-function-run"):
        task = train_with_own_function()
    print(f"accuracy on the test dataset: {task.output:.3f}")
