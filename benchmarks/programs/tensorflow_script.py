"""Train on random rows by MultiWorkerMirroredStrategy. A usual script for TF_CONFIG."""

import argparse
import json
import os
import time

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf

arguments = argparse.ArgumentParser()
arguments.add_argument("--model_dir", required=True)
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
rows = np.random.default_rng(index).random((6400, 64), np.float32)
inputs, labels = tf.constant(rows), tf.constant(rows[:, 0] * 10 // 1)
with strategy.scope():
    layers = [tf.keras.layers.Dense(512, "relu"), tf.keras.layers.Dense(512, "relu"), tf.keras.layers.Dense(10)]
    model = tf.keras.Sequential([tf.keras.layers.InputLayer((64,)), *layers])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    optimizer = tf.keras.optimizers.SGD(0.01)


def train_step(step: tf.Tensor) -> None:
    """Train on one batch of this worker's rows."""
    batch = slice(step % 100 * 64, (step % 100 + 1) * 64)
    with tf.GradientTape() as tape:
        lost = loss(labels[batch], model(inputs[batch], training=True)) / (64 * strategy.num_replicas_in_sync)
    optimizer.apply_gradients(
        zip(tape.gradient(lost, model.trainable_variables), model.trainable_variables, strict=True)
    )


# Not by `fit`: in about one run of five, its input iterator waits ten seconds at the end.
@tf.function
def train(steps: int) -> None:
    """Run all steps in one call."""
    for step in tf.range(steps):
        strategy.run(train_step, (step,))


started = time.monotonic()
train(600)
print(f"{600 / (time.monotonic() - started):.1f} steps a second", flush=True)
# All workers have to save. The file of the first worker is the model.
folder = arguments.parse_args().model_dir
model.save_weights(f"{folder}/model.h5" if index == 0 else f"{folder}/of-{index}.h5")
