"""The defaults of parameters in the compiled YAML, as people read them."""

import re

import pytest
import yaml
from google.protobuf import json_format
from kfp import compiler, components, dsl
from kfp.pipeline_spec.pipeline_spec_pb2 import PipelineSpec

from kfp_distributed.components import Delivery
from kfp_distributed.pipelines.specs import with_stable_defaults, write_specs


@dsl.component
def step(epochs: int = 3, rate: float = 2.0, options: dict = {"layers": [8, 4]}) -> None:  # noqa: B006
    """Prints 5.0 lines."""


@dsl.pipeline(name="numbers", description="Version 1.0, 2.0")
def numbers(
    shards: int = 8,
    seed: int = -1,
    rate: float = 1.0,
    sizes: list = [1, 2.5, {"rows": 3}],  # noqa: B006
    parameters: dict = {"epochs": 15, "rate": 0.5, "name": "v1.0", "deep": {"steps": [10]}},  # noqa: B006
) -> None:
    step(epochs=shards, rate=rate, options=parameters)


def compiled(tmp_path):
    file = tmp_path / "numbers.yaml"
    compiler.Compiler().compile(numbers, str(file))
    return file, file.read_text()


def test_defaults_have_whole_numbers_and_floats_stay(tmp_path):
    rewritten = with_stable_defaults(compiled(tmp_path)[1])
    parameters = yaml.safe_load(rewritten)["root"]["inputDefinitions"]["parameters"]
    assert {name: repr(parameter["defaultValue"]) for name, parameter in parameters.items()} == {
        "shards": "8",
        "seed": "-1",
        "rate": "1.0",
        "sizes": "[1, 2.5, {'rows': 3}]",
        "parameters": "{'deep': {'steps': [10]}, 'epochs': 15, 'name': 'v1.0', 'rate': 0.5}",
    }
    inner = yaml.safe_load(rewritten)["components"]["comp-step"]["inputDefinitions"]["parameters"]
    assert (
        repr([inner[name]["defaultValue"] for name in ("epochs", "rate", "options")]) == "[3, 2.0, {'layers': [8, 4]}]"
    )
    comments = [line for line in rewritten.splitlines() if line.startswith("#")]
    assert "# Description: Version 1.0, 2.0" in comments
    assert "#    seed: int [Default: -1]" in comments
    assert "#    rate: float [Default: 1.0]" in comments
    assert not [line for line in comments if re.search(r"(int|dict|list) \[.*\d\.0[,\]}]", line)]


HEADER = """\
# PIPELINE DEFINITION
# Name: numbers
# Description: Has the line
#              #    options: dict [Default: {'b': 1.0, 'a': 2.0}]
# Inputs:
#    name: str [Default: '{"b": 1.0, "a": 2.0}']
#    options: dict [Default: %s]
#    sizes: list [Default: %s]
# Outputs:
#    Output: dict
"""


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        (
            "{'rate': 0.5, 'deep': {'y': None, 'x': [10.0, True]}, 'a \\n]': \"it's 5.0\"}",
            "[{'z': 1.0, 'b': -3.0}, 2.5]",
        ),
        (
            "{'a \\n]': \"it's 5.0\", 'deep': {'x': [10.0, True], 'y': None}, 'rate': 0.5}",
            "[{'b': -3.0, 'z': 1.0}, 2.5]",
        ),
    ],
)
def test_comments_have_sorted_keys(options, sizes):
    assert with_stable_defaults(HEADER % (options, sizes) + "{}\n") == (
        HEADER
        % ("{'a \\n]': \"it's 5.0\", 'deep': {'x': [10, True], 'y': None}, 'rate': 0.5}", "[{'b': -3, 'z': 1}, 2.5]")
        + "{}\n"
    )


def test_kfp_reads_the_same_pipeline(tmp_path):
    file, text = compiled(tmp_path)
    rewritten = with_stable_defaults(text)
    before, after = (json_format.ParseDict(yaml.safe_load(item), PipelineSpec()) for item in (text, rewritten))
    assert before == after
    file.write_text(rewritten)
    loaded = components.load_component_from_file(str(file))
    assert loaded.pipeline_spec == after
    # Compiled anew, kfp writes what it wrote at first.
    compiler.Compiler().compile(loaded, str(file))
    assert yaml.safe_load(file.read_text()) == yaml.safe_load(text)


def test_the_compiled_components_and_pipelines_have_whole_numbers(tmp_path):
    for file in write_specs(tmp_path, Delivery.image("registry.example.com/steps:1")):
        text = file.read_text()
        assert with_stable_defaults(text) == text
        assert not re.search(r"^#    \w+: (int|dict|list) \[Default: .*\d\.0[,\]}]", text, re.MULTILINE), file
    text = (tmp_path / "train_and_export.yaml").read_text()
    parameters = yaml.safe_load(text)["root"]["inputDefinitions"]["parameters"]
    assert repr(parameters["train_parameters"]["defaultValue"]) == "{'epochs': 15}"
    assert repr(parameters["shards"]["defaultValue"]) == "8"
