"""What a stranger sees of a step that cannot do its work: KFP shows the log alone, and its last line is the cause."""

import re

import compiled
import pytest
from kfp import compiler

from kfp_distributed import components

pytestmark = pytest.mark.takes(6)


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    """The steps as they are now, compiled."""
    folder = tmp_path_factory.mktemp("specs")
    for step in compiled.STEPS:
        compiler.Compiler().compile(getattr(components, step), str(folder / f"{step}.yaml"))
    return folder


CASES = {
    "a parameter that is not allowed": (
        "prepare_data",
        {"source": "digits", "shards": 2.5},
        {},
        r"ValueError: shards is 2\.5: it must be a whole number from 1 to 512",
    ),
    "no such data": (
        "prepare_data",
        {"source": "/no/data.csv"},
        {},
        r"ValueError: source /no/data\.csv does not exist: .*",
    ),
    "a server that is away": (
        "prepare_data",
        {"source": "http://127.0.0.1:1/data.csv"},
        {},
        r"OSError: source http://127\.0\.0\.1:1/data\.csv cannot be downloaded: .*refused.*",
    ),
    "a source with a placeholder": (
        "prepare_data",
        {"source": "s3://data/{{$.pipeline_job_uuid}}"},
        {},
        r"ValueError: source has the placeholder '\{\{\$\.pipeline_job_uuid\}\}', .*",
    ),
    "a training with a placeholder": (
        "train",
        {
            "train_specification": {"trainer": "keras_classifier"},
            "train_parameters": {"note": "{{$.pipeline_job_uuid}}"},
        },
        {"train_dataset": "prepare_data/train_dataset"},
        r"\S+Z ERROR job ValueError: train_parameters\.note has the placeholder '\{\{\$\.pipeline_job_uuid\}\}', .*",
    ),
    "a bucket with a placeholder": (
        "export_model",
        {"model_name": "digits", "bucket": "models-{{$.pipeline_job_uuid}}"},
        {"model": "train/model"},
        r"ValueError: bucket has the placeholder '\{\{\$\.pipeline_job_uuid\}\}', .*",
    ),
    "a dataset that is not there": (
        "evaluate",
        {},
        {"model": "train/model", "dataset": "prepare_data/test_dataset"},
        r"FileNotFoundError: .*/prepare-data/.*/test_dataset has no dataset\.json: pass a dataset .*",
    ),
    "a name that is not allowed": (
        "export_model",
        {"model_name": "a b", "bucket": "models"},
        {"model": "train/model"},
        r"ValueError: model_name='a b' is not allowed: .*",
    ),
    "a model that is not there": (
        "export_model",
        {"model_name": "digits", "bucket": "./models"},
        {"model": "train/model"},
        r"ModelIncomplete: .*model\.json.*",
    ),
}


@pytest.mark.parametrize(("step", "parameters", "inputs", "cause"), CASES.values(), ids=CASES)
def test_the_cause_is_the_last_line(specs, tmp_path, step, parameters, inputs, cause):
    command = compiled.step_command(step, compiled.Run(str(tmp_path)), parameters, inputs, specs=specs)
    done = compiled.run_step_command(command, tmp_path)
    assert done.returncode == 1
    assert re.fullmatch(cause, done.stdout.splitlines()[-1]), done.stdout[-4000:]
    assert "Traceback" not in done.stdout
