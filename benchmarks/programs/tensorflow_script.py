"""Trains on random rows by MultiWorkerMirroredStrategy, as anybody would who writes TF_CONFIG by hand."""

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
batches = tf.data.Dataset.from_tensor_slices((rows, rows[:, 0] * 10 // 1)).batch(128, drop_remainder=True).repeat()
with strategy.scope():
    layers = [tf.keras.layers.Dense(512, "relu"), tf.keras.layers.Dense(512, "relu"), tf.keras.layers.Dense(10)]
    model = tf.keras.Sequential([tf.keras.layers.InputLayer((64,)), *layers])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.SGD(0.01), loss, steps_per_execution=50)
started = time.monotonic()
model.fit(batches, epochs=6, steps_per_epoch=100, verbose=0)
print(f"{600 / (time.monotonic() - started):.1f} steps a second", flush=True)
# Every worker takes part in saving, and the file of the first is the model.
folder = arguments.parse_args().model_dir
model.save_weights(f"{folder}/model.h5" if index == 0 else f"{folder}/of-{index}.h5")
