import os
import subprocess
import sys

import pytest

from kfp_distributed.components.model_formats.model_signature import pick_output

pytestmark = pytest.mark.takes(13)

LOAD = """
import sys
from pathlib import Path
from kfp_distributed.components.evaluate.model_function import load_model_function
from kfp_distributed.storage.dataset import Column
load_model_function(Path(sys.argv[1]), [Column("image", "tensor", "uint8", (4, 4))], "probabilities")
"""


def test_tensorflow_prints_no_remarks_when_it_starts(linear):
    folder, _ = linear
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    argv = [sys.executable, "-c", LOAD, str(folder)]
    process = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    assert process.stderr == ""


@pytest.mark.parametrize(
    ("names", "expected"), [(["prediction", "x"], "prediction"), (["x"], "x"), ({"prediction": None}, "prediction")]
)
def test_pick(names, expected):
    assert pick_output(names, "prediction") == expected


@pytest.mark.parametrize("names", [[], ["a", "b"]])
def test_ambiguous_names_are_refused(names):
    with pytest.raises(ValueError, match=r"has the outputs \[.*\], where one is needed, or one named 'prediction'"):
        pick_output(names, "prediction")
