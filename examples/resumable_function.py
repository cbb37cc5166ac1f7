"""A training function that continues from its last checkpoint."""


def fit(train_dir: str, model_dir: str, checkpoint_dir: str, epochs: int = 10) -> None:
    """Train a network, with a checkpoint after each epoch."""
    from pathlib import Path

    import numpy as np
    import tf_keras

    from kfp_distributed.storage.dataset import DatasetManifest, read_batches, width

    manifest = DatasetManifest.from_json(Path(train_dir, "dataset.json").read_text())
    inputs, labels = (np.concatenate(arrays) for arrays in zip(*read_batches(Path(train_dir), manifest), strict=True))
    layers = [tf_keras.layers.Dense(len(manifest.label.classes), "softmax", input_shape=(width(manifest),))]
    model = tf_keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy")

    # Loads the newest checkpoint when training begins, and saves one after each epoch.
    backup = tf_keras.callbacks.BackupAndRestore(checkpoint_dir, delete_checkpoint=False)
    model.fit(np.nan_to_num(inputs), labels, epochs=epochs, verbose=2, callbacks=[backup])
    model.export(model_dir)
