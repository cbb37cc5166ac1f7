"""What this library uses of TensorFlow without its promise, with the reason, the versions and the test of each use.

TensorFlow names as public what is in `tf` and in https://www.tensorflow.org/api_docs/python/tf.
tests/trainers/test_tensorflow_internals.py fails when a use is no longer needed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf

_TOKEN = "pyfunc_0"
"""Name that TensorFlow gives to the first Python function that a process registers."""


def never_destroy(iterator: object) -> None:
    """Keep an iterator of tf.data until the process has ended, by a reference that nobody returns.

    The destructor of an iterator, here or in a remote worker, waits for the thread that autotunes its input. The thread
    may miss its notification and then sleeps for up to a minute: Model::OptimizeLoop waits for it while IsCancelled()
    is false, https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/core/framework/model.cc, and
    CancellationManager notifies before it returns true,
    https://github.com/tensorflow/tensorflow/blob/18c005b3ace1fbd8f5e31695126464c628e50bb3/third_party/xla/xla/tsl/framework/cancellation.cc.
    Needed by TensorFlow 2.15 and 2.21.

    The public option `tf.data.Options().autotune.enabled = False` prevents the thread in a plain iterator.
    MultiWorkerMirroredStrategy makes iterators of its own, which have the thread nevertheless.

    Args:
        iterator: An iterator that `fit` passes to the function of a step.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(iterator))


def leave_keras_unconverted() -> None:
    """Exclude tf_keras from AutoGraph, which otherwise rewrites its source for half a minute at each start.

    Needed by TensorFlow 2.15, which Horovod needs: its rules exclude Keras 2 only under the name `keras`. TensorFlow
    2.21 has the rule for `tf_keras`.

    Uses CONVERSION_RULES:
    https://github.com/tensorflow/tensorflow/blob/v2.15.1/tensorflow/python/autograph/core/config.py. The public
    `tf.autograph.experimental.do_not_convert` does not replace it: it has no effect on a `tf.function` that Keras makes
    inside the excluded function.
    """
    from tensorflow.python.autograph.core import config

    config.CONVERSION_RULES = (config.DoNotConvert("tf_keras"), *config.CONVERSION_RULES)


def register_function(function: Callable[..., object], inputs: Sequence[tf.DType], outputs: Sequence[tf.DType]) -> None:
    """Register a function of this process that graphs of another process call, see `call_where_it_runs`.

    `tf.numpy_function` promises that a function is called in the process of the `tf.distribute.Server` that runs the
    operation. So an operation that another process has built finds the function by its name, which is not promised:
    FuncRegistry counts the functions of a process,
    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/ops/script_ops.py. `from_generator` and
    `tf.numpy_function` use names of the process that builds the graph. Needed by TensorFlow 2.21.

    Args:
        function: The function. It gets arrays and scalars of NumPy, and bytes.
        inputs: Types of its arguments.
        outputs: Types of its results.

    Raises:
        RuntimeError: This process has registered another function before.
    """
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        results = tf.numpy_function(function, [tf.compat.v1.placeholder(kind) for kind in inputs], list(outputs))
    if (token := results[0].op.get_attr("token").decode()) != _TOKEN:
        raise RuntimeError(f"TensorFlow has named a function {token!r}, but other processes call {_TOKEN!r}")
    _registered.append(graph)


_registered: list[object] = []
"""Graphs to which functions belong: TensorFlow forgets a function with its graph."""


def call_where_it_runs(arguments: Sequence[tf.Tensor], outputs: Sequence[tf.DType]) -> list[tf.Tensor]:
    """Return the results of the function that the process that runs the operation has registered.

    Args:
        arguments: Arguments of the function.
        outputs: Types of its results.
    """
    import tensorflow as tf

    results: list[tf.Tensor] = tf.raw_ops.PyFunc(input=list(arguments), token=_TOKEN, Tout=list(outputs))
    return results
