"""Train on random rows by Horovod. A usual script for mpirun."""

import argparse
import time

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

arguments = argparse.ArgumentParser()
arguments.add_argument("--model_dir", required=True)
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
hvd.init()
rows = np.random.default_rng(hvd.rank()).random((6400, 64), np.float32)
batches = tf.data.Dataset.from_tensor_slices((rows, rows[:, 0] * 10 // 1)).batch(64)
# Deleting an iterator waits for the current round of its autotuner, which takes 4 s in about every second run.
options = tf.data.Options()
options.autotune.enabled = False
layers = [tf.keras.layers.Dense(512, "relu"), tf.keras.layers.Dense(512, "relu"), tf.keras.layers.Dense(10)]
model = tf.keras.Sequential([tf.keras.layers.InputLayer((64,)), *layers])
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.01 * hvd.size()))
model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
first = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
started = time.monotonic()
model.fit(batches.with_options(options), epochs=6, verbose=0, callbacks=first)
print(f"{600 / (time.monotonic() - started):.1f} steps a second", flush=True)
if hvd.rank() == 0:
    model.save_weights(f"{arguments.parse_args().model_dir}/model.h5")
