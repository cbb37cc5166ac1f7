"""Train a convolutional network on images with TensorFlow's MultiWorkerMirroredStrategy.

Pass `train_specification(multi_worker_convolution)` to `train`, with a distribution_specification of several workers
and no parameter servers: `{"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 0}`.
The images may be the digits of `prepare_data`, or a folder of images of any size.

Run `python multi_worker_convolution.py` to train on the digits on this machine. The file `horovod_convolution.py`
trains the same network with Horovod.
"""

from kfp import dsl

from kfp_distributed.components import evaluate, prepare_data, train
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.trainers import train_specification


def multi_worker_convolution(
    train_dir: str,
    validation_dir: str,
    model_dir: str,
    checkpoint_dir: str,
    metrics_dir: str,
    epochs: int = 10,
    batch_size: int = 64,
    learning_rate: float = 2e-3,
    filters: list[int] = [16, 32],  # noqa: B006 - the step reads literal defaults from the signature
    seed: int = 0,
) -> None:
    """Train a convolutional network synchronously, and save it as a SavedModel.

    Each worker computes the gradients of its own rows, and the strategy averages them. Training resumes after the last
    epoch in checkpoint_dir. Only the files of worker 0, the chief, are kept.

    Args:
        train_dir: Training rows of this worker, which fit into its memory. Each row is an image.
        validation_dir: Validation dataset, which may be empty; "" for none. Each worker scores all of its rows.
        model_dir: Folder for the SavedModel, in worker 0.
        checkpoint_dir: Folder for a checkpoint after each epoch. Worker 0 writes it, and all workers read it.
        metrics_dir: Folder for training.json, in worker 0.
        epochs: Number of passes over the rows, including those of a checkpoint.
        batch_size: Rows of one update, over all workers.
        learning_rate: Learning rate of Adam.
        filters: Number of filters of each convolution. Pooling halves the image after each one.
        seed: Seed of the initial weights and of the order of the rows.
    """
    import ctypes
    import math
    import os
    import signal
    import tempfile
    from pathlib import Path

    import numpy as np
    import tensorflow as tf

    from kfp_distributed.storage.dataset import DatasetManifest, input_shape, is_image, mean_and_std, read_batches
    from kfp_distributed.trainers.sync import record_epoch

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # Before all else of TensorFlow. It reads TF_CONFIG.
    # The strategy has replaced the handler of SIGTERM. Without this line the process would continue to train.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    cluster = strategy.cluster_resolver.cluster_spec().as_dict()
    worker, workers = strategy.cluster_resolver.task_id or 0, len(cluster.get("worker", [""]))
    devices = strategy.num_replicas_in_sync  # The GPUs of all workers, or one processor of each.

    def manifest_of(folder: str) -> DatasetManifest:
        return DatasetManifest.from_json(Path(folder, "dataset.json").read_text())

    manifest = manifest_of(train_dir)
    shape, classes = input_shape(manifest), len(manifest.label.classes)
    if not is_image(shape):
        raise ValueError(f"a row has the shape {list(shape)}; allowed: images, [height, width] with 1 or 3 channels")

    def read(folder: str) -> tuple[np.ndarray, np.ndarray]:
        """Return all images of a dataset, in the type in which they are stored, and their labels."""
        images, labels = [np.empty((0, *shape), manifest.columns[0].dtype)], [np.empty(0, np.int32)]
        for rows, numbers in read_batches(Path(folder), manifest_of(folder)):
            images.append(rows.reshape(-1, *shape).astype(images[0].dtype))
            labels.append(numbers)
        return np.concatenate(images), np.concatenate(labels)

    def build() -> tf.keras.Model:
        """Return a network that scales images and returns the probability of each class."""
        mean, std = mean_and_std(manifest).reshape(2, *shape)
        inputs = tf.keras.Input(shape, name="features")
        values = tf.reshape((inputs - mean) / std, [-1, *(*shape, 1)[:3]])
        for number in filters:
            values = tf.keras.layers.Conv2D(number, 3, padding="same", activation="relu")(values)
            values = tf.keras.layers.MaxPooling2D(padding="same")(values)
        values = tf.keras.layers.Flatten()(values)
        return tf.keras.Model(inputs, tf.keras.layers.Dense(classes, "softmax")(values))

    def summed(number: tf.Tensor) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(tf.identity, [number]), axis=None)

    sum_over_devices = tf.function(summed, autograph=False)

    def total(number: int) -> int:
        """Return the sum of a number of each worker."""
        return int(sum_over_devices(tf.constant(number, tf.int64))) * workers // devices

    tf.keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = build()
        model.compile(tf.keras.optimizers.Adam(learning_rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
        model.optimizer.build(model.trainable_variables)  # Creates the state that a checkpoint restores.
        checkpoint = tf.train.Checkpoint(model=model)
        _ = checkpoint.save_counter  # The first save would create this variable, inside `fit`.

    # All workers save, because variables such as the means of BatchNormalization are averaged over them. The files of
    # the others are not needed.
    unneeded = tempfile.TemporaryDirectory()
    manager = tf.train.CheckpointManager(checkpoint, unneeded.name if worker else checkpoint_dir, max_to_keep=1)
    newest = tf.train.latest_checkpoint(checkpoint_dir)
    if newest:
        checkpoint.restore(newest).assert_existing_objects_matched()
    done = int(newest.rpartition("-")[2]) if newest else 0
    if total(done) != done * workers:  # One worker has downloaded its checkpoint before the last upload was complete.
        raise tf.errors.UnavailableError(None, None, "the workers have different checkpoints")  # All of them restart.

    images, labels = read(train_dir)  # Not divided again: these are the rows of this worker.
    batch = max(1, batch_size // devices)
    steps = max(1, total(len(labels)) // (batch * devices))  # Each worker must have the same number.
    print(f"worker {worker} of {workers} has {len(labels)} rows; {done} of {epochs} epochs are done", flush=True)

    def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        rows = tf.data.Dataset.from_tensor_slices((images, labels))
        return rows.shuffle(len(labels), seed + done).repeat().batch(batch)

    def validation_batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(scored).batch(batch)

    def end_epoch(epoch: int, logs: dict[str, float]) -> None:
        manager.save(epoch + 1)
        if worker == 0:  # After the checkpoint is written, because this also uploads it.
            replica = os.environ.get("KFP_DISTRIBUTED_REPLICA", "worker-0")
            record_epoch(Path(metrics_dir, "training.json"), replica, epoch + 1, epochs, logs)

    train_step = model.make_train_function()

    def step(iterator: object) -> object:
        # Keeps the iterator alive until exit: its destructor can wait for a minute.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(iterator))
        return train_step(iterator)

    model.train_function = step
    scored = read(validation_dir) if validation_dir else ((), ())
    model.fit(
        strategy.distribute_datasets_from_function(batches),
        validation_data=strategy.distribute_datasets_from_function(validation_batches) if len(scored[1]) else None,
        validation_steps=math.ceil(len(scored[1]) * workers / (batch * devices)) or None,
        initial_epoch=done,
        epochs=epochs,
        steps_per_epoch=steps,
        verbose=0,
        callbacks=[tf.keras.callbacks.LambdaCallback(on_epoch_end=end_epoch)],
    )

    def answer(features: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"probabilities": model(features, training=False)}

    features = tf.TensorSpec([None, *shape], tf.float32, name="features")
    served = tf.Module()  # Without the optimizer.
    served.variables_of_model = model.variables
    save_dir = unneeded.name if worker else model_dir
    tf.saved_model.save(served, save_dir, signatures=tf.function(answer, [features], autograph=False))


@dsl.pipeline
def train_on_digits(workers: int = 2, epochs: int = 10) -> float:
    """Train on handwritten digits with several workers, and return the accuracy on the test dataset."""
    data = prepare_data(source="digits")
    training = train(
        train_dataset=data.outputs["train_dataset"],
        validation_dataset=data.outputs["validation_dataset"],
        train_specification=train_specification(multi_worker_convolution),
        train_parameters={"epochs": epochs},
        distribution_specification={
            "distribution_type": "TF",
            "number_of_workers": workers,
            "number_of_parameter_servers": 0,
        },
    )
    scores = evaluate(model=training.outputs["model"], dataset=data.outputs["test_dataset"])
    return scores.outputs["score"]


if __name__ == "__main__":
    with local_run("multi-worker-convolution-run"):
        task = train_on_digits()
    print(f"accuracy on the test dataset: {task.output:.3f}")
