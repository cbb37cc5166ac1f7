"""An embedding table that is cut into parts, one for each parameter server: no process holds the whole.

TensorFlow's ParameterServerStrategy with a loop of its own, as a start for a program of yours:
`train_specification(partitioned_embedding)` sends this one function to a TF job with parameter servers.
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

    The chief reads the rows and gives each batch to a worker, which fetches the table's rows of that batch from the
    servers and sends their gradients back. Goes on after the last epoch that checkpoint_dir has, with as many servers
    as there are by then.

    Args:
        train_dir: All training rows, in the chief.
        validation_dir: The validation dataset; "" where there is none.
        model_dir: Gets a SavedModel; without `assemble` the parts: table.npy and layers.npz.
        checkpoint_dir: Gets epoch-NUMBER/table.npy and layers.npz.
        metrics_dir: Gets training.json.
        column: The column with the category: its index, or a whole number from 0 on.
        table_rows: Rows of the table; a number that is not below is taken modulo this one.
        dimensions: Width of the table.
        epochs: How often all rows are seen.
        batch_size: Rows of one worker's step.
        learning_rate: Of stochastic gradient descent, which keeps nothing beside the table.
        hidden_units: Size of the hidden layer.
        assemble: Whether the chief makes one model at the end, for which it has to hold the whole table.
        seed: For the first weights and the order of the rows.
    """
    import math
    import os
    import shutil
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import numpy as np
    import tensorflow as tf

    from kfp_distributed.storage.dataset import DatasetManifest, input_shape, read_batches, width
    from kfp_distributed.trainers.sync import record_epoch

    manifest = DatasetManifest.from_json(Path(train_dir, "dataset.json").read_text())
    sizes = [math.prod(each.shape) for each in manifest.columns]
    places = {each.name: sum(sizes[:number]) for number, each in enumerate(manifest.columns) if not each.shape}
    if column not in places:
        raise ValueError(f"{column=}; allowed: {', '.join(places) or 'none'}, the dataset's columns but tensors")
    place = places[column]
    mean, std = np.repeat(np.array([[each.mean, each.std] for each in manifest.columns], np.float32), sizes, 0).T
    replica = os.environ.get("KFP_DISTRIBUTED_REPLICA", "chief-0")

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    servers = len(resolver.cluster_spec().as_dict()["ps"])
    # As many parts as there are servers; what has less than 32 kB stays whole.
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(2**14, max_shards=servers)
    strategy = tf.distribute.ParameterServerStrategy(resolver, partitioner)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def parts_of(variable: tf.Variable) -> list[tf.Variable]:
        """Return what a variable consists of, in the order of its rows: each part is on one server."""
        return list(getattr(variable, "variables", [variable]))

    def make_table() -> tf.Variable:
        """Return the table. It begins with zeros, and each server makes those of its own part."""

        def zeros(
            partition_shape: Sequence[int] = (table_rows, dimensions), partition_offset: Sequence[int] = ()
        ) -> tf.Tensor:
            return tf.zeros(partition_shape)

        with strategy.scope():
            return tf.Variable(zeros, shape=[table_rows, dimensions], dtype=tf.float32, name="table")

    def make_layers() -> list[tf.Variable]:
        """Return the weights of two layers, with random ones, so that a table of zeros can learn."""
        random, classes = np.random.default_rng(seed), len(manifest.label.classes)
        shapes = [(dimensions + width(manifest) - 1, hidden_units), (hidden_units, classes)]
        weights = [random.normal(0, shape[0] ** -0.5, shape).astype("f") for shape in shapes]
        biases = [np.full(size, 0.1, "f") for size in (hidden_units, classes)]
        with strategy.scope():
            return [tf.Variable(values) for values in (*weights, *biases)]

    def answer(rows: tf.Tensor, table: tf.Variable, layers: Sequence[tf.Variable]) -> tf.Tensor:
        """Return the logits of rows as the dataset has them; what is missing counts as the mean, or as number 0."""
        scaled = (rows - mean) / std
        scaled = tf.where(tf.math.is_nan(scaled), 0.0, scaled)
        category = tf.where(tf.math.is_nan(rows[:, place]), 0.0, rows[:, place])
        embedded = tf.nn.embedding_lookup(table, tf.cast(category, tf.int64) % table_rows)
        values = tf.concat([embedded, scaled[:, :place], scaled[:, place + 1 :]], 1)
        return tf.nn.relu(values @ layers[0] + layers[2]) @ layers[1] + layers[3]

    table, layers = make_table(), make_layers()
    trained = [part for variable in (table, *layers) for part in parts_of(variable)]
    for number, part in enumerate(parts_of(table)):
        print(f"part {number} of the table: {part.shape[0]} of {table_rows} rows, {part.device}", flush=True)

    def count(logits: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the mean loss; and the sum of losses, the right ones, the rows."""
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        right = tf.cast(tf.argmax(logits, 1, tf.int32) == labels, tf.float32)
        totals = [tf.reduce_sum(losses), tf.reduce_sum(right), tf.cast(tf.size(labels), tf.float32)]
        return tf.reduce_mean(losses), tf.stack(totals)

    def train(rows: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Do one step, in a worker: each server changes what it has by what the worker sends it."""
        with tf.GradientTape() as tape:
            loss, totals = count(answer(rows, table, layers), labels)
        for part, gradient in zip(trained, tape.gradient(loss, trained), strict=True):
            if isinstance(gradient, tf.IndexedSlices):  # Of a table's part: of some of its rows alone.
                part.scatter_sub(tf.IndexedSlices(learning_rate * gradient.values, gradient.indices))
            else:
                part.assign_sub(learning_rate * gradient)
        return totals

    def score(rows: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return count(answer(rows, table, layers), labels)[1]

    def give_out(step: Callable[..., tf.Tensor], folder: str, epoch: int) -> dict[str, float]:
        """Have the workers do a step for each batch of a dataset; return the mean loss and the accuracy."""
        random, results = np.random.default_rng((seed, epoch)), []
        own = DatasetManifest.from_json(Path(folder, "dataset.json").read_text())
        for rows, labels in read_batches(Path(folder), own):  # Some thousand rows, shuffled among themselves.
            order = random.permutation(len(labels))
            for start in range(0, len(order), batch_size):
                some = order[start : start + batch_size]
                results.append(coordinator.schedule(step, (tf.constant(rows[some]), tf.constant(labels[some]))))
            coordinator.join()
        if not results:
            return {}
        loss, right, seen = np.sum(coordinator.fetch(results), 0).tolist()
        return {"loss": loss / seen, "accuracy": right / seen}

    def blocks() -> Iterator[tuple[tf.Variable, tf.Tensor]]:
        """Yield the table's parts and, of each, the rows of one block after the other: 4 MB, for the chief."""
        size = max(1, 2**20 // dimensions)
        for part in parts_of(table):
            for start in range(0, part.shape[0], size):
                yield part, tf.range(start, min(start + size, part.shape[0]))

    def save(epoch: int) -> None:
        """Make a checkpoint, which appears at once or not at all. It is the same for any number of servers."""
        fresh, old = Path("fresh"), checkpoints()
        fresh.mkdir(exist_ok=True)
        with (fresh / "table.npy").open("wb") as stream:
            header = {"descr": "<f4", "fortran_order": False, "shape": (table_rows, dimensions)}
            np.lib.format.write_array_header_1_0(stream, header)
            for part, rows in blocks():
                stream.write(part.sparse_read(rows).numpy().tobytes())
        np.savez(fresh / "layers.npz", *(tf.convert_to_tensor(each).numpy() for each in layers))
        fresh.rename(Path(checkpoint_dir, f"epoch-{epoch:06d}"))
        for folder in old:
            shutil.rmtree(folder)

    def checkpoints() -> list[Path]:
        return sorted(Path(checkpoint_dir).glob("epoch-*"))

    def restore() -> int:
        """Go on from the newest checkpoint; return how many epochs it has."""
        if not checkpoints():
            return 0
        folder = checkpoints()[-1]
        with (folder / "table.npy").open("rb") as stream:
            np.lib.format.read_magic(stream)
            np.lib.format.read_array_header_1_0(stream)
            for part, rows in blocks():
                values = np.fromfile(stream, "<f4", len(rows) * dimensions).reshape(-1, dimensions)
                part.scatter_update(tf.IndexedSlices(values, rows))
        with np.load(folder / "layers.npz") as kept:
            for variable, name in zip(layers, kept.files, strict=True):
                variable.assign(kept[name])
        return int(folder.name[6:])

    def export(folder: Path) -> None:
        """Write the model from "features" to "probabilities": the one moment at which the chief has the whole table."""
        whole = tf.Module()
        whole.table = tf.Variable(np.load(folder / "table.npy"))
        with np.load(folder / "layers.npz") as kept:
            whole.layers = [tf.Variable(kept[name]) for name in kept.files]

        def serve(features: tf.Tensor) -> dict[str, tf.Tensor]:
            logits = answer(tf.reshape(features, [-1, width(manifest)]), whole.table, whole.layers)
            return {"probabilities": tf.nn.softmax(logits)}

        features = tf.TensorSpec([None, *input_shape(manifest)], tf.float32, name="features")
        tf.saved_model.save(whole, model_dir, signatures=tf.function(serve, [features], autograph=False))

    batch = [tf.TensorSpec([None, width(manifest)], tf.float32), tf.TensorSpec([None], tf.int32)]
    train_step, score_step = (tf.function(each, batch, autograph=False) for each in (train, score))
    for epoch in range(restore() + 1, epochs + 1):
        metrics = give_out(train_step, train_dir, epoch)
        if validation_dir:
            metrics |= {f"val_{name}": value for name, value in give_out(score_step, validation_dir, 0).items()}
        save(epoch)
        record_epoch(Path(metrics_dir, "training.json"), replica, epoch, epochs, metrics)
    if assemble:
        export(checkpoints()[-1])
    else:
        shutil.copytree(checkpoints()[-1], model_dir, dirs_exist_ok=True)
