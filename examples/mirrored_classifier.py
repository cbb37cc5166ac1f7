"""Train on several devices of one process with TensorFlow's MirroredStrategy, also without GPUs.

Pass `train_specification(mirrored_classifier)` to `train`, with the distribution_specification `{}`. On GPU nodes, set
`worker_gpus` to 2 or more. With GPUs the built-in trainer `keras_classifier` does the same.
"""


def mirrored_classifier(
    train_dir: str,
    validation_dir: str,
    model_dir: str,
    checkpoint_dir: str,
    metrics_dir: str,
    devices: int = 2,
    epochs: int = 10,
    batch_size: int = 32,
    learning_rate: float = 1e-3,
    seed: int = 0,
    hidden_units: list[int] = [128],  # noqa: B006 - the step reads literal defaults from the signature
) -> None:
    """Train keras_classifier on all GPUs, or on several CPU devices if there are no GPUs.

    Args:
        train_dir: Training dataset.
        validation_dir: Validation dataset; "" for none.
        model_dir: Folder for the SavedModel.
        checkpoint_dir: Folder for a checkpoint after each epoch.
        metrics_dir: Folder for training.json.
        devices: Number of CPU devices if there are no GPUs.
        epochs: Number of passes over the rows.
        batch_size: Rows of one update, over all devices.
        learning_rate: Learning rate of Adam.
        seed: Seed of the initial weights and of the order of the rows.
        hidden_units: Sizes of the hidden layers.
    """
    import tensorflow as tf

    from kfp_distributed.trainers.keras_classifier import keras_classifier
    from kfp_distributed.trainers.programs.training_parameters import TrainingParameters

    (processor,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * devices)
    folders = train_dir, validation_dir, model_dir, checkpoint_dir, metrics_dir, ""
    keras_classifier(*folders, TrainingParameters(epochs, batch_size, learning_rate, hidden_units, seed))
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    print("trained on", len(tf.config.list_logical_devices(kind)), kind, "devices")
