"""Evaluate models in a store or in a folder."""

import json
import os
import subprocess
import sys

import numpy as np
from forked_replicas import forked

from kfp_distributed.components.evaluate.model_function import load_model_function
from kfp_distributed.storage.dataset import Column

# In a separate process, so that TensorFlow does not stay in the memory of the tests.
SCORE = """
import sys, numpy, tensorflow
data = numpy.load(sys.argv[2])
signatures = tensorflow.saved_model.load(sys.argv[1]).signatures
serve = signatures["features" if "features" in signatures else "serving_default"]
spec = serve.structured_input_signature[1]["features"]
probabilities = serve(features=tensorflow.constant(data["inputs"]))["probabilities"].numpy()
assert numpy.allclose(probabilities.sum(axis=1), 1, atol=1e-5)
print(spec.dtype.name, spec.shape, (probabilities.argmax(axis=1) == data["labels"]).mean())
"""


def score(store, folder, digits):
    """Return the input specification of a saved model, and its accuracy on the test rows."""
    store.download_folder(folder / "model")
    np.savez(folder / "test.npz", inputs=digits.test_inputs, labels=digits.test_labels)
    argv = forked(sys.executable, "-c", SCORE, str(folder / "model"), str(folder / "test.npz"))
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    output = subprocess.run(argv, capture_output=True, text=True, env=environment)
    assert output.returncode == 0, output.stderr
    description, accuracy = output.stdout.strip().rsplit(" ", 1)
    return description, float(accuracy)


def answers_of(folder, name):
    """Return a function that returns an output of a stored model, a SavedModel or ONNX, for float32 [n, width]."""
    manifest = json.loads((folder / "model.json").read_text(), object_hook=with_tuples)
    return load_model_function(folder, [Column(**column) for column in manifest["columns"]], name)


def with_tuples(item):
    return {key: tuple(value) if isinstance(value, list) else value for key, value in item.items()}
