"""The defects of TensorFlow for which workarounds/tensorflow_internals.py and the options of the input exist."""

import json
import os
import subprocess
import sys

import pytest
from environments import trainer_python
from forked_replicas import forked

pytestmark = [pytest.mark.takes(35), pytest.mark.of_libraries]

# The rules decide by a private function, `is_allowlisted`: whether AutoGraph leaves a function as it is. The server of
# forks has changed them when it imported the trainers, so that these programs start anew.
RULES = """
import json, sys
import tf_keras
from tensorflow.python.autograph.impl.conversion import is_allowlisted
from kfp_distributed.trainers.runtime.workarounds.tensorflow_internals import leave_keras_unconverted

functions = tf_keras.Model.train_step, tf_keras.layers.Dense.call
before = [is_allowlisted(function) for function in functions]
leave_keras_unconverted()
print(json.dumps([before, [is_allowlisted(function) for function in functions]]))
"""


@pytest.fixture
def run(library_archive):
    def run_one(command):
        result = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": str(library_archive), "CUDA_VISIBLE_DEVICES": ""},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=400,
        )
        return json.loads(result.stdout.splitlines()[-1])

    return run_one


def test_autograph_would_convert_keras_with_horovod(run):
    assert run([trainer_python("horovod"), "-c", RULES]) == [[False, False], [True, True]]


def test_autograph_leaves_keras_as_it_is_in_the_tensorflow_of_the_other_trainers(run):
    assert run([sys.executable, "-c", RULES]) == [[True, True], [True, True]]


# With all threads on one processor, the thread of tf.data that autotunes wakes up while its iterator is cancelled. It
# sees no cancellation yet, and sleeps for as long as it has before: twice as long each time, up to a minute.
DESTRUCTORS = """
import json, os, sys, time
import numpy as np
from kfp_distributed.trainers.runtime.data_loading.row_dataset import dataset_of_served_rows
from kfp_distributed.trainers.runtime.data_loading.served_rows import RowOptions, RowRequest
from kfp_distributed.trainers.runtime.workarounds.tensorflow_internals import register_function
import tensorflow as tf

window = np.int64(1), np.ones((100, 66), np.float32)
register_function(lambda request, iteration: window, [tf.string, tf.int64], [tf.int64, tf.float32])
records = dataset_of_served_rows(RowRequest(RowOptions(0, "none", 0, 1), 0, 0), 64, 4)
if sys.argv[2] == "autotune":
    options = tf.data.Options()
    options.autotune.enabled = True
    records = records.with_options(options)
if sys.argv[1] == "strategy":
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    records = strategy.distribute_datasets_from_function(lambda context, own=records: own)
iterators = [iter(records) for _ in range(80)]
for iterator in iterators:
    next(iterator)
del iterator
time.sleep(2)  # By then, the thread that autotunes sleeps for about a second at a time.
for thread in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(thread), {min(os.sched_getaffinity(0))})
longest = 0
while iterators and longest < 0.9:
    start = time.monotonic()
    iterators.pop()
    longest = max(longest, time.monotonic() - start)
print(json.dumps(longest), flush=True)
os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="binds threads to a processor")
@pytest.mark.parametrize(
    ("strategy", "autotune", "waits"),
    [("none", "autotune", True), ("none", "as-it-is", False), ("strategy", "as-it-is", True)],
)
def test_destructor_of_an_iterator_waits(run, strategy, autotune, waits):
    """With autotuning, which our datasets turn off, and under a strategy, where iterators have to be kept."""

    def is_slow():
        return run(forked(sys.executable, "-c", DESTRUCTORS, strategy, autotune)) > 0.9

    # Some three in ten runs do not meet the thread at such a time, and other processes may delay a destructor. Neither
    # happens ten times in a row. Nearly always the first run decides.
    runs = (is_slow() for _ in range(10))
    assert any(runs) if waits else not all(runs)


NAMES = """
import json
import tensorflow as tf
from kfp_distributed.trainers.runtime.workarounds.tensorflow_internals import call_where_it_runs, register_function

register_function(lambda number: number + 1, [tf.int64], [tf.int64])
result = int(tf.function(lambda: call_where_it_runs([tf.constant(41, tf.int64)], [tf.int64])[0])())
try:
    register_function(lambda number: number, [tf.int64], [tf.int64])
except RuntimeError as error:
    print(json.dumps([result, str(error)]))
"""


def test_only_the_first_function_of_a_process_has_the_name_that_others_call(run):
    assert run(forked(sys.executable, "-c", NAMES)) == [
        42,
        "TensorFlow has named a function 'pyfunc_1', but other processes call 'pyfunc_0'",
    ]
