"""Train an embedding table that is divided among parameter servers. No process holds the whole table.

This is TensorFlow's ParameterServerStrategy with a training loop, to start a program of your own from. Pass
`train_specification(partitioned_embedding)` to `train`, with a distribution_specification of type TF with parameter
servers.
"""


def partitioned_embedding(
    train_dir: str,
    validation_dir: str,
    model_dir: str,
    checkpoint_dir: str,
    metrics_dir: str,
    column: str,
    table_rows: int,
    dimensions: int = 16,
    epochs: int = 10,
    batch_size: int = 64,
    learning_rate: float = 0.5,
    hidden_units: int = 32,
    assemble: bool = True,
    seed: int = 0,
) -> None:
    """Train a classifier of one large category and other columns, asynchronously.

    The chief reads the rows and schedules a step for each batch. A worker fetches the table's rows of the batch from
    the servers and sends their gradients back. Training resumes after the last epoch in checkpoint_dir, with any number
    of servers.

    Args:
        train_dir: All training rows, in the chief.
        validation_dir: Validation dataset; "" for none.
        model_dir: Folder for a SavedModel; without `assemble` for table.npy and layers.npz.
        checkpoint_dir: Folder for epoch-NUMBER/table.npy and layers.npz.
        metrics_dir: Folder for training.json.
        column: Name of the column with the category, as an index or a whole number of at least 0.
        table_rows: Rows of the table. A category is taken modulo this number.
        dimensions: Width of the table.
        epochs: Number of passes over the rows.
        batch_size: Rows of one step of a worker.
        learning_rate: Learning rate of stochastic gradient descent, which needs no memory beside the table.
        hidden_units: Size of the hidden layer.
        assemble: Whether the chief saves one model at the end, for which it needs memory for the whole table.
        seed: Seed of the initial weights and of the order of the rows.
    """
    import math
    import os
    import shutil
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import numpy as np
    import tensorflow as tf

    from kfp_distributed.storage.dataset import DatasetManifest, input_shape, mean_and_std, read_batches, width
    from kfp_distributed.trainers.sync import record_epoch

    manifest = DatasetManifest.from_json(Path(train_dir, "dataset.json").read_text())
    sizes = [math.prod(field.shape) for field in manifest.columns]
    positions = {field.name: sum(sizes[:number]) for number, field in enumerate(manifest.columns) if not field.shape}
    if column not in positions:
        raise ValueError(f"{column=}; allowed: {', '.join(positions) or 'none'}, the dataset's columns without tensors")
    position = positions[column]
    mean, std = mean_and_std(manifest)
    replica = os.environ.get("KFP_DISTRIBUTED_REPLICA", "chief-0")

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    servers = len(resolver.cluster_spec().as_dict()["ps"])
    # One part for each server. A variable of less than 32 kB is not divided.
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(2**14, max_shards=servers)
    strategy = tf.distribute.ParameterServerStrategy(resolver, partitioner)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def parts_of(variable: tf.Variable) -> list[tf.Variable]:
        """Return the parts of a variable, in the order of its rows. Each part is on one server."""
        return list(getattr(variable, "variables", [variable]))

    def make_table() -> tf.Variable:
        """Return the table. Each server fills its own part with zeros."""

        def zeros(
            partition_shape: Sequence[int] = (table_rows, dimensions), partition_offset: Sequence[int] = ()
        ) -> tf.Tensor:
            return tf.zeros(partition_shape)

        with strategy.scope():
            return tf.Variable(zeros, shape=[table_rows, dimensions], dtype=tf.float32, name="table")

    def make_layers() -> list[tf.Variable]:
        """Return the weights and biases of two layers. Random weights let a table of zeros learn."""
        random, classes = np.random.default_rng(seed), len(manifest.label.classes)
        shapes = [(dimensions + width(manifest) - 1, hidden_units), (hidden_units, classes)]
        weights = [random.normal(0, shape[0] ** -0.5, shape).astype("f") for shape in shapes]
        biases = [np.full(size, 0.1, "f") for size in (hidden_units, classes)]
        with strategy.scope():
            return [tf.Variable(values) for values in (*weights, *biases)]

    def answer(rows: tf.Tensor, table: tf.Variable, layers: Sequence[tf.Variable]) -> tf.Tensor:
        """Return the logits of rows of the dataset. A missing number becomes the mean, a missing category 0."""
        scaled = (rows - mean) / std
        scaled = tf.where(tf.math.is_nan(scaled), 0.0, scaled)
        category = tf.where(tf.math.is_nan(rows[:, position]), 0.0, rows[:, position])
        embedded = tf.nn.embedding_lookup(table, tf.cast(category, tf.int64) % table_rows)
        values = tf.concat([embedded, scaled[:, :position], scaled[:, position + 1 :]], 1)
        return tf.nn.relu(values @ layers[0] + layers[2]) @ layers[1] + layers[3]

    table, layers = make_table(), make_layers()
    trained = [part for variable in (table, *layers) for part in parts_of(variable)]
    for number, part in enumerate(parts_of(table)):
        print(f"part {number} of the table: {part.shape[0]} of {table_rows} rows, {part.device}", flush=True)

    def count(logits: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the mean loss, and the totals: sum of losses, correct rows, rows."""
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        correct = tf.cast(tf.argmax(logits, 1, tf.int32) == labels, tf.float32)
        totals = [tf.reduce_sum(losses), tf.reduce_sum(correct), tf.cast(tf.size(labels), tf.float32)]
        return tf.reduce_mean(losses), tf.stack(totals)

    def train(rows: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Run one step in a worker. Each server applies the gradients that the worker sends."""
        with tf.GradientTape() as tape:
            loss, totals = count(answer(rows, table, layers), labels)
        for part, gradient in zip(trained, tape.gradient(loss, trained), strict=True):
            if isinstance(gradient, tf.IndexedSlices):  # Gradients of some rows of the table.
                part.scatter_sub(tf.IndexedSlices(learning_rate * gradient.values, gradient.indices))
            else:
                part.assign_sub(learning_rate * gradient)
        return totals

    def score(rows: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return count(answer(rows, table, layers), labels)[1]

    def run_epoch(step: Callable[..., tf.Tensor], folder: str, epoch: int) -> dict[str, float]:
        """Run a step for each batch of a dataset in the workers; return the mean loss and the accuracy."""
        random, results = np.random.default_rng((seed, epoch)), []
        dataset = DatasetManifest.from_json(Path(folder, "dataset.json").read_text())
        for rows, labels in read_batches(Path(folder), dataset):  # Some thousand rows, which are shuffled.
            order = random.permutation(len(labels))
            for start in range(0, len(order), batch_size):
                chosen = order[start : start + batch_size]
                results.append(coordinator.schedule(step, (tf.constant(rows[chosen]), tf.constant(labels[chosen]))))
            coordinator.join()
        if not results:
            return {}
        loss, correct, rows = np.sum(coordinator.fetch(results), 0).tolist()
        return {"loss": loss / rows, "accuracy": correct / rows}

    def blocks() -> Iterator[tuple[tf.Variable, tf.Tensor]]:
        """Yield each part of the table with the row numbers of each of its blocks. A block has 4 MB."""
        size = max(1, 2**20 // dimensions)
        for part in parts_of(table):
            for start in range(0, part.shape[0], size):
                yield part, tf.range(start, min(start + size, part.shape[0]))

    def save(epoch: int) -> None:
        """Save a checkpoint atomically. Its content does not depend on the number of servers."""
        fresh, previous = Path("fresh"), checkpoints()
        fresh.mkdir(exist_ok=True)
        with (fresh / "table.npy").open("wb") as stream:
            header = {"descr": "<f4", "fortran_order": False, "shape": (table_rows, dimensions)}
            np.lib.format.write_array_header_1_0(stream, header)
            for part, rows in blocks():
                stream.write(part.sparse_read(rows).numpy().tobytes())
        np.savez(fresh / "layers.npz", *(tf.convert_to_tensor(weights).numpy() for weights in layers))
        fresh.rename(Path(checkpoint_dir, f"epoch-{epoch:06d}"))
        for folder in previous:
            shutil.rmtree(folder)

    def checkpoints() -> list[Path]:
        return sorted(Path(checkpoint_dir).glob("epoch-*"))

    def restore() -> int:
        """Load the newest checkpoint, and return its epoch; 0 for none."""
        if not checkpoints():
            return 0
        folder = checkpoints()[-1]
        with (folder / "table.npy").open("rb") as stream:
            np.lib.format.read_magic(stream)
            np.lib.format.read_array_header_1_0(stream)
            for part, rows in blocks():
                values = np.fromfile(stream, "<f4", len(rows) * dimensions).reshape(-1, dimensions)
                part.scatter_update(tf.IndexedSlices(values, rows))
        with np.load(folder / "layers.npz") as saved:
            for variable, name in zip(layers, saved.files, strict=True):
                variable.assign(saved[name])
        return int(folder.name[6:])

    def export(folder: Path) -> None:
        """Save the model from "features" to "probabilities". Only now the chief has the whole table in memory."""
        model = tf.Module()
        model.table = tf.Variable(np.load(folder / "table.npy"))
        with np.load(folder / "layers.npz") as saved:
            model.layers = [tf.Variable(saved[name]) for name in saved.files]

        def serve(features: tf.Tensor) -> dict[str, tf.Tensor]:
            logits = answer(tf.reshape(features, [-1, width(manifest)]), model.table, model.layers)
            return {"probabilities": tf.nn.softmax(logits)}

        features = tf.TensorSpec([None, *input_shape(manifest)], tf.float32, name="features")
        tf.saved_model.save(model, model_dir, signatures=tf.function(serve, [features], autograph=False))

    batch = [tf.TensorSpec([None, width(manifest)], tf.float32), tf.TensorSpec([None], tf.int32)]
    train_step, score_step = (tf.function(step, batch, autograph=False) for step in (train, score))
    for epoch in range(restore() + 1, epochs + 1):
        metrics = run_epoch(train_step, train_dir, epoch)
        if validation_dir:
            metrics |= {f"val_{name}": value for name, value in run_epoch(score_step, validation_dir, 0).items()}
        save(epoch)
        record_epoch(Path(metrics_dir, "training.json"), replica, epoch, epochs, metrics)
    if assemble:
        export(checkpoints()[-1])
    else:
        shutil.copytree(checkpoints()[-1], model_dir, dirs_exist_ok=True)
