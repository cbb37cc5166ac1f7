"""Training functions that read the rows of their rank as a stream: with NumPy, tf.data and PyTorch."""


# --8<-- [start:numpy]
def fit_with_numpy(train_dir: str, model_dir: str, epochs: int = 3) -> None:
    """Train a softmax regression."""
    from pathlib import Path

    import numpy as np

    from kfp_distributed.storage.dataset import DatasetManifest, width
    from kfp_distributed.trainers.rows import rows

    manifest = DatasetManifest.from_json(Path(train_dir, "dataset.json").read_text())
    weights = np.zeros((width(manifest), len(manifest.label.classes)))

    for epoch in range(epochs):
        for inputs, labels in rows(train_dir, batch_size=64, seed=0, epoch=epoch):
            scores = np.exp(inputs @ weights - (inputs @ weights).max(axis=1, keepdims=True))
            errors = scores / scores.sum(axis=1, keepdims=True) - np.eye(len(weights[0]))[labels]
            weights -= 1e-3 * inputs.T @ errors / len(labels)

    np.savez(Path(model_dir, "model.npz"), weights=weights)


# --8<-- [end:numpy]


# --8<-- [start:tensorflow]
def fit_with_tensorflow(train_dir: str, model_dir: str, epochs: int = 3) -> None:
    """Train a network with tf.data."""
    from pathlib import Path

    import tensorflow as tf
    import tf_keras

    from kfp_distributed.storage.dataset import DatasetManifest, width
    from kfp_distributed.trainers.rows import rows

    manifest = DatasetManifest.from_json(Path(train_dir, "dataset.json").read_text())
    layers = [tf_keras.layers.Dense(len(manifest.label.classes), "softmax", input_shape=(width(manifest),))]
    model = tf_keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy")

    batch = (tf.TensorSpec([None, width(manifest)], tf.float32), tf.TensorSpec([None], tf.int32))
    for epoch in range(epochs):
        stream = tf.data.Dataset.from_generator(
            lambda epoch=epoch: rows(train_dir, batch_size=64, seed=0, epoch=epoch), output_signature=batch
        )
        model.fit(stream.prefetch(2), verbose=2)
    model.export(model_dir)


# --8<-- [end:tensorflow]


# --8<-- [start:pytorch]
def fit_with_pytorch(train_dir: str, model_dir: str, checkpoint_dir: str, epochs: int = 3) -> None:
    """Train a network with a dataset whose position is in the checkpoint."""
    from pathlib import Path

    import torch

    from kfp_distributed.storage.dataset import DatasetManifest, width
    from kfp_distributed.trainers.sync import flush
    from kfp_distributed.trainers.torch_rows import RowDataset

    manifest = DatasetManifest.from_json(Path(train_dir, "dataset.json").read_text())
    torch.manual_seed(0)
    network = torch.nn.Linear(width(manifest), len(manifest.label.classes))
    optimizer, file = torch.optim.SGD(network.parameters(), 1e-3), Path(checkpoint_dir, "checkpoint.pt")

    dataset = RowDataset(train_dir, batch_size=64, seed=0)
    if file.exists():
        saved = torch.load(file, weights_only=True)
        network.load_state_dict(saved["network"])
        dataset.load_state_dict(saved["rows"])
    while dataset.epoch < epochs:
        for step, (inputs, labels) in enumerate(dataset, 1):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(inputs), labels).backward()
            optimizer.step()
            if step % 10 == 0:
                unfinished = file.with_suffix(".new")
                torch.save({"network": network.state_dict(), "rows": dataset.state_dict()}, unfinished)
                unfinished.replace(file)
                flush()
    torch.save(network.state_dict(), Path(model_dir, "network.pt"))


# --8<-- [end:pytorch]
