"""Evaluate a SavedModel in a store."""

import os
import subprocess
import sys

import numpy as np

# In a separate process, so that TensorFlow does not stay in the memory of the tests.
SCORE = """
import sys, numpy, tensorflow
data = numpy.load(sys.argv[2])
serve = tensorflow.saved_model.load(sys.argv[1]).signatures["serving_default"]
spec = serve.structured_input_signature[1]["features"]
probabilities = serve(features=tensorflow.constant(data["inputs"]))["probabilities"].numpy()
assert numpy.allclose(probabilities.sum(axis=1), 1, atol=1e-5)
print(spec.dtype.name, spec.shape, (probabilities.argmax(axis=1) == data["labels"]).mean())
"""


def score(store, folder, digits):
    """Return the input specification of a saved model, and its accuracy on the test rows."""
    store.download_folder(folder / "model")
    np.savez(folder / "test.npz", inputs=digits.test_inputs, labels=digits.test_labels)
    argv = [sys.executable, "-c", SCORE, str(folder / "model"), str(folder / "test.npz")]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    output = subprocess.run(argv, capture_output=True, text=True, env=environment)
    assert output.returncode == 0, output.stderr
    description, accuracy = output.stdout.strip().rsplit(" ", 1)
    return description, float(accuracy)


def answers_of(folder, name):
    """Return a function that returns an output of a model, a SavedModel or ONNX, for float32 inputs."""
    if (file := folder / "model.onnx").exists():
        import onnxruntime

        session = onnxruntime.InferenceSession(str(file))
        return lambda inputs: session.run([name], {"features": inputs})[0]
    import tensorflow as tf

    serve = tf.saved_model.load(str(folder)).signatures["serving_default"]
    return lambda inputs: serve(features=tf.constant(inputs))[name].numpy()
