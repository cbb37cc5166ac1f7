import os
import re
import subprocess
import sys

import pytest

from kfp_distributed.components.evaluate.model_function import fit_shape, pick


@pytest.mark.parametrize(
    ("input_shape", "row", "expected"),
    [
        ([None, 8, 8], (8, 8), (8, 8)),
        ([None, None, None], (8, 8), (8, 8)),
        (None, (8, 8), (8, 8)),
        ([None, 64], (8, 8), (64,)),
        ([None, None], (8, 8), (64,)),
        ([None, 8, 8, 1], (8, 8), (8, 8, 1)),
        ([None, None, None, 1], (8, 8), (8, 8, 1)),
        ([None, 8, 8], (8, 8, 1), (8, 8)),
        ([None, 13], (13,), (13,)),
        ([None], (1,), ()),
    ],
)
def test_fit_shape(input_shape, row, expected):
    assert fit_shape(input_shape, row) == expected


@pytest.mark.parametrize(
    ("input_shape", "row"),
    [
        ([None, 28, 28], (8, 8)),
        ([None, 3, 8, 8], (8, 8, 3)),  # The same size with other axes.
        ([None, 8, 8], (64,)),
        ([None, 8], (8, 8)),
        ([None, 12], (13,)),
        ([32, 8, 8], (8, 8)),
        ([], (8, 8)),
    ],
)
def test_shapes_that_do_not_match_are_refused(input_shape, row):
    message = f"is of shape {tuple(input_shape)}, where {(None, *row)} is needed: evaluate"
    with pytest.raises(ValueError, match=re.escape(message)):
        fit_shape(input_shape, row)


LOAD = """
import sys
from pathlib import Path
from kfp_distributed.components.evaluate.model_function import load_model_function
load_model_function(Path(sys.argv[1]), (4, 4), "probabilities")
"""


def test_tensorflow_prints_no_remarks_when_it_starts(linear):
    folder, _ = linear
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    argv = [sys.executable, "-c", LOAD, str(folder)]
    process = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    assert process.stderr == ""


@pytest.mark.parametrize(
    ("names", "expected"), [(["features", "x"], "features"), (["x"], "x"), ({"features": None}, "features")]
)
def test_pick(names, expected):
    assert pick(names, "features") == expected


@pytest.mark.parametrize("names", [[], ["a", "b"]])
def test_ambiguous_names_are_refused(names):
    with pytest.raises(ValueError, match=r"has \[.*\], where one is needed, or one named 'features'"):
        pick(names, "features")
