"""One process with several devices, each with all weights: TensorFlow's MirroredStrategy, also where there is no GPU.

`train_specification(mirrored_classifier)` sends this one function to a job of one pod: `{}`, with `worker_gpus` of 2 or
more where there are GPUs. There the trainer `keras_classifier` alone does the same.
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
    hidden_units: list[int] = [128],  # noqa: B006 - a literal, so that the signature says it
) -> None:
    """Train keras_classifier on all GPUs, or on parts of the processor where there are none.

    Args:
        train_dir: The training dataset.
        validation_dir: The validation dataset; "" where there is none.
        model_dir: Gets the SavedModel.
        checkpoint_dir: Gets a checkpoint after each epoch.
        metrics_dir: Gets training.json.
        devices: Into how many devices the processor is divided where there is no GPU.
        epochs: How often all rows are seen.
        batch_size: Rows of one update of the weights, over all devices.
        learning_rate: Of the Adam optimizer.
        seed: For the first weights and the order of the rows.
        hidden_units: Sizes of the hidden layers.
    """
    import tensorflow as tf

    from kfp_distributed.trainers.keras_classifier import keras_classifier

    (processor,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * devices)
    folders = train_dir, validation_dir, model_dir, checkpoint_dir, metrics_dir, ""
    keras_classifier(*folders, epochs, batch_size, learning_rate, hidden_units, seed)
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    print("trained on", len(tf.config.list_logical_devices(kind)), kind, "devices")
