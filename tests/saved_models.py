"""What a SavedModel in a store answers."""

import os
import subprocess
import sys

import numpy as np

# In a process of its own, so that tests keep no TensorFlow in memory beside the replicas.
SCORE = """
import sys, numpy, tensorflow
data = numpy.load(sys.argv[2])
serve = tensorflow.saved_model.load(sys.argv[1]).signatures["serving_default"]
spec = serve.structured_input_signature[1]["features"]
found = serve(features=tensorflow.constant(data["inputs"]))["probabilities"].numpy()
assert numpy.allclose(found.sum(axis=1), 1, atol=1e-5)
print(spec.dtype.name, spec.shape, (found.argmax(axis=1) == data["labels"]).mean())
"""


def score(store, folder, digits):
    """The saved model's input and its accuracy on rows that the training never saw."""
    store.download_folder(folder / "model")
    np.savez(folder / "test.npz", inputs=digits.test_inputs, labels=digits.test_labels)
    argv = [sys.executable, "-c", SCORE, str(folder / "model"), str(folder / "test.npz")]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    output = subprocess.run(argv, capture_output=True, text=True, env=environment)
    assert output.returncode == 0, output.stderr
    description, accuracy = output.stdout.strip().rsplit(" ", 1)
    return description, float(accuracy)
