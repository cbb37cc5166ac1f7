"""Train a convolutional network on images with Horovod.

Pass `train_specification(horovod_convolution)` to `train`, with a distribution_specification of type MPI:
`{"distribution_type": "MPI", "number_of_workers": 2}`. On a cluster, also name your image with Horovod:
`train_specification(horovod_convolution, image="registry.example.com/team/horovod:TAG")`. The images may be the digits
of `prepare_data`, or a folder of images of any size.

Run `make environments` once and then `python horovod_convolution.py` to train on the digits on this machine. The file
`multi_worker_convolution.py` trains the same network with TensorFlow alone.
"""

from kfp import dsl

from kfp_distributed.components import evaluate, prepare_data, train
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.trainers import train_specification


def horovod_convolution(
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

    Each rank computes the gradients of its own rows, and Horovod averages them. Training resumes after the last epoch
    in checkpoint_dir. Only rank 0 saves checkpoints, metrics and the model.

    Args:
        train_dir: Training rows of this rank, which fit into its memory. Each row is an image.
        validation_dir: Validation dataset, which may be empty; "" for none. Each rank scores all of its rows.
        model_dir: Folder for the SavedModel, in rank 0.
        checkpoint_dir: Folder for a checkpoint after each epoch, in rank 0.
        metrics_dir: Folder for training.json, in rank 0.
        epochs: Number of passes over the rows, including those of a checkpoint.
        batch_size: Rows of one update, over all ranks.
        learning_rate: Learning rate of Adam. It belongs to batch_size, so it is not multiplied by the number of ranks.
        filters: Number of filters of each convolution. Pooling halves the image after each one.
        seed: Seed of the initial weights and of the order of the rows.
    """
    import os
    from pathlib import Path

    import horovod.tensorflow.keras as hvd
    import numpy as np
    import tensorflow as tf
    from horovod.tensorflow import allgather_object, broadcast_object, broadcast_variables

    from kfp_distributed.storage.dataset import DatasetManifest, input_shape, is_image, mean_and_std, read_batches
    from kfp_distributed.trainers.sync import record_epoch

    hvd.init()
    rank, ranks = hvd.rank(), hvd.size()
    if gpus := tf.config.list_physical_devices("GPU"):  # Each rank of a worker uses one.
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")

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

    tf.keras.utils.set_random_seed(seed)
    model = build()
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(learning_rate))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.optimizer.build(model.trainable_variables)  # Creates the state that a checkpoint restores.
    checkpoint = tf.train.Checkpoint(model=model)
    manager = tf.train.CheckpointManager(checkpoint, checkpoint_dir, max_to_keep=1)
    newest = manager.latest_checkpoint if rank == 0 else None
    if newest:
        checkpoint.restore(newest).assert_existing_objects_matched()
    done = broadcast_object(int(newest.rpartition("-")[2]) if newest else 0, 0)
    # All ranks begin with the weights and the optimizer of rank 0, whether they are new or restored.
    broadcast_variables([*model.variables, *model.optimizer.variables], 0)

    images, labels = read(train_dir)  # Not divided again: these are the rows of this rank.
    batch = max(1, batch_size // ranks)
    steps = max(1, sum(allgather_object(len(labels))) // (batch * ranks))  # Each rank must have the same number.
    print(f"rank {rank} of {ranks} has {len(labels)} rows; {done} of {epochs} epochs are done", flush=True)
    rows = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(labels), seed + done).repeat()

    def end_epoch(epoch: int, logs: dict[str, float]) -> None:
        if rank == 0:
            manager.save(epoch + 1)
            # After the checkpoint is written, because this also uploads it.
            replica = os.environ.get("KFP_DISTRIBUTED_REPLICA", "worker-0")
            record_epoch(Path(metrics_dir, "training.json"), replica, epoch + 1, epochs, logs)

    scored = read(validation_dir) if validation_dir else ((), ())
    model.fit(
        rows.batch(batch),
        validation_data=scored if len(scored[1]) else None,
        initial_epoch=done,
        epochs=epochs,
        steps_per_epoch=steps,
        verbose=0,
        callbacks=[
            hvd.callbacks.MetricAverageCallback(),
            tf.keras.callbacks.LambdaCallback(on_epoch_end=end_epoch),
        ],
    )

    def answer(features: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"probabilities": model(features, training=False)}

    if rank == 0:
        features = tf.TensorSpec([None, *shape], tf.float32, name="features")
        served = tf.Module()  # Without the optimizer, which needs Horovod to load.
        served.variables_of_model = model.variables
        tf.saved_model.save(served, model_dir, signatures=tf.function(answer, [features], autograph=False))


@dsl.pipeline
def train_on_digits(workers: int = 2, epochs: int = 10) -> float:
    """Train on handwritten digits with several workers, and return the accuracy on the test dataset."""
    data = prepare_data(source="digits")
    training = train(
        train_dataset=data.outputs["train_dataset"],
        validation_dataset=data.outputs["validation_dataset"],
        train_specification=train_specification(horovod_convolution),
        train_parameters={"epochs": epochs},
        distribution_specification={"distribution_type": "MPI", "number_of_workers": workers},
    )
    scores = evaluate(model=training.outputs["model"], dataset=data.outputs["test_dataset"])
    return scores.outputs["score"]


if __name__ == "__main__":
    with local_run("horovod-convolution-run"):
        task = train_on_digits()
    print(f"accuracy on the test dataset: {task.output:.3f}")
