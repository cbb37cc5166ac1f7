"""The pipelines of examples/: those of the tutorials run on this machine, those of the how-to guides compile."""

import json
import re
import runpy
from pathlib import Path

import pytest
import yaml
from kfp.compiler import Compiler

from kfp_distributed.components.train.describe.distributions import parse_distribution
from kfp_distributed.pipelines.local_run import local_run

pytestmark = pytest.mark.takes(27)

EXAMPLES = Path(__file__).parents[2] / "examples"
# kfp takes seconds for the pipelines themselves, and each process of pytest-xdist needs their names.
HOW_TO = re.findall(
    r"\w+", (EXAMPLES / "how_to_pipelines.py").read_text(encoding="utf-8").partition("\nPIPELINES = ")[2]
)


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def example(name):
    return runpy.run_path(str(EXAMPLES / name))


@pytest.mark.takes(15)
def test_the_pipeline_of_the_readme_trains_and_exports(in_folder):
    train_digits = example("train_digits.py")["train_digits"]
    with local_run("run"):
        train_digits(workers=1, epochs=1)
    assert (in_folder / "run" / "models" / "digits" / "1" / "saved_model.pb").exists()


@pytest.mark.parametrize(
    ("file", "pipeline"),
    [
        ("own_function.py", "train_with_own_function"),
        ("multi_worker_convolution.py", "train_on_digits"),
        ("horovod_convolution.py", "train_on_digits"),
        ("text_classification.py", "classify_messages"),
        ("fine_tuning.py", "fine_tune_on_messages"),
        ("fine_tuned_chats.py", "fine_tune_on_chats"),
    ],
)
def test_the_pipelines_with_functions_of_your_own_compile(file, pipeline, tmp_path):
    """Tests in tests/trainers/ train with the functions themselves."""
    Compiler().compile(example(file)[pipeline], str(tmp_path / "pipeline.yaml"))


@pytest.mark.takes(15)
def test_a_csv_file_of_your_own_trains(in_folder):
    example("make_wine_csv.py")
    pipeline = example("own_data.py")["train_on_own_data"]
    with local_run("run"):
        task = pipeline(source="wine.csv", label_column="cultivar")
    assert task.output > 0.85


@pytest.mark.takes(25)
def test_the_best_model_of_a_search_is_evaluated(in_folder):
    with local_run("run"):
        task = example("tune_digits.py")["tune_digits"](trials=2)
    assert task.output > 0.5
    (parameters,) = Path("run").glob("artifacts/*/tune/executor_output.json")
    assert {"learning_rate", "hidden_units", "epochs"} <= {
        *json.loads(parameters.read_text())["parameterValues"]["best_parameters"]
    }


@pytest.fixture(scope="module")
def guides():
    pipelines = example("how_to_pipelines.py")["PIPELINES"]
    assert [pipeline.name for pipeline in pipelines] == [name.replace("_", "-") for name in HOW_TO]
    return dict(zip(HOW_TO, pipelines, strict=True))


@pytest.mark.parametrize("pipeline", HOW_TO, ids=lambda name: name.replace("_", "-"))
def test_the_pipelines_of_the_guides_compile(guides, pipeline, tmp_path):
    Compiler().compile(guides[pipeline], str(tmp_path / "pipeline.yaml"))
    tasks = next(yaml.safe_load_all((tmp_path / "pipeline.yaml").read_text()))["root"]["dag"]["tasks"]
    inputs = tasks["train"]["inputs"]["parameters"]
    distribution = inputs.get("distribution_specification", {}).get("runtimeValue", {}).get("constant", {})
    parse_distribution(distribution)
