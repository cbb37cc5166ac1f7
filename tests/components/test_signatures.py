"""The number of inputs of a step, each of which is a box in the form of the KFP UI."""

import pytest

from kfp_distributed import components
from kfp_distributed.components import Steps

MOST_INPUTS = 16
"""What belongs together and is set by few is one dict with a typed builder, such as `Split`."""


def inputs_of(step):
    return getattr(components, step).component_spec.inputs


@pytest.mark.parametrize("step", Steps._fields)
def test_a_step_has_few_inputs(step):
    assert len(inputs_of(step)) <= MOST_INPUTS


def test_what_a_first_run_needs_comes_first():
    assert [*inputs_of("prepare_data")] == [
        "source",
        "label_column",
        "task",
        "columns",
        "drop_columns",
        "split",
        "missing",
        "csv_format",
        "image_size",
        "on_bad_row",
        "rare_classes",
        "shards",
        "like",
        "source_fingerprint",
        "distribution_specification",
    ]
