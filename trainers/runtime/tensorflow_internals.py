"""What this library uses of TensorFlow without its promise, with the reason, the versions and the test of each use.

TensorFlow names as public what is in `tf` and in https://www.tensorflow.org/api_docs/python/tf.
tests/trainers/test_tensorflow_internals.py fails when a use is no longer needed.
"""

import ctypes


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
