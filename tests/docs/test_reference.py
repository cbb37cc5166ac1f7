"""The generated parts of the reference, and that its other tables are complete."""

import ast
import inspect
import json
import re
from dataclasses import fields
from typing import NamedTuple, get_args

import click
import pytest
import reference
from kfp import dsl
from release import IMAGES

from kfp_distributed.components.acceptance.threshold import DIRECTIONS
from kfp_distributed.components.evaluate.scoring.classification_scores import Evaluation
from kfp_distributed.components.evaluate.scoring.regression_scores import RegressionScores
from kfp_distributed.components.prepare_data import split_parameter
from kfp_distributed.components.prepare_data.report import data_warnings
from kfp_distributed.components.prepare_data.scan.chunk_scan import MAXIMUM_DISTINCT
from kfp_distributed.components.train.describe.distributions import KEYS, parse_distribution
from kfp_distributed.components.train.describe.manifests import HASH_ANNOTATION
from kfp_distributed.components.train.describe.manifests.train_job import DISTRIBUTION_ANNOTATION
from kfp_distributed.components.train.run.facts import Level, State
from kfp_distributed.components.train.run.shown_progress.progress_annotations import ALL_ANNOTATIONS
from kfp_distributed.components.train.tell.log_format import parse_line
from kfp_distributed.storage.kubeflow.kfp_backend import RELIANCES
from kfp_distributed.storage.model import MODEL_MANIFEST
from kfp_distributed.trainers import TRAINERS
from kfp_distributed.trainers.programs.program import parameters_of
from kfp_distributed.trainers.programs.requirements import variable_of
from kfp_distributed.trainers.runtime.job_description import (
    EVALUATOR_METRICS,
    FINE_TUNING,
    TENSORBOARD,
    TRAINING_METRICS,
)
from kfp_distributed.trainers.runtime.monitoring.progress import Progress, parse_progress
from kfp_distributed.trainers.runtime.monitoring.samples import Sample, split_sample
from kfp_distributed.trainers.runtime.monitoring.trainer_status import TimedProgress, status_body

PAGES = reference.ROOT / "docs" / "reference"
SPECIFICATION = (PAGES / "distribution-specification.md").read_text("utf-8")


def rows_of(markdown: str) -> list[list[str]]:
    """Return the cells of the rows of all tables, without heads."""
    lines = [line for line in markdown.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    heads = {number - 1 for number, row in enumerate(cells) if set(row) == {"---"}}
    return [row for number, row in enumerate(cells) if number not in heads and set(row) != {"---"}]


def test_a_marker_is_replaced_by_its_part():
    parts = {"keys": lambda: "| a |\n", "trainers": lambda: "b"}
    page = "# Title\n\n<!-- generated: keys -->\n\n<!-- generated: trainers -->\n"
    assert reference.insert_parts(page, parts) == "# Title\n\n| a |\n\nb\n"


def test_a_marker_without_a_part_is_refused():
    with pytest.raises(ValueError, match=r"<!-- generated: kyes --> names no part; allowed: keys, trainers"):
        reference.insert_parts("<!-- generated: kyes -->\n", {"trainers": str, "keys": str})


def test_every_part_is_on_a_page_and_every_page_has_known_parts():
    text = "".join(page.read_text("utf-8") for page in PAGES.parent.rglob("*.md"))
    assert sorted(re.findall("<!-- generated: (.+) -->", text)) == sorted(reference.generated_parts())


@dsl.component(base_image="python:3.11")
def measure(
    data: dsl.Input[dsl.Dataset],
    out: dsl.Output[dsl.HTML],
    rows: int = 5,
    names: list = ["a"],  # noqa: B006
    extra: str = None,  # noqa: RUF013
) -> NamedTuple("Result", [("size", float)]):
    """Measures data.

    Args:
        data: Data to
            measure.
        rows: A | B.
        names: Names.

    Returns:
        out: A page.
        size: A size.
    """


def test_the_section_of_a_component():
    assert reference.describe_interface(measure.component_spec) == (
        "## measure\n\nMeasures data.\n\n"
        "Inputs:\n\n"
        "| name | type | default | description |\n| --- | --- | --- | --- |\n"
        "| `data` | Dataset | required | Data to measure. |\n"
        "| `rows` | int | `5` | A \\| B. |\n"
        '| `names` | list | `["a"]` | Names. |\n'
        "| `extra` | str | none |  |\n"
        "\nOutputs:\n\n"
        "| name | type | description |\n| --- | --- | --- |\n"
        "| `out` | HTML | A page. |\n"
        "| `size` | float | A size. |\n"
    )


def test_the_section_of_a_command():
    @click.group()
    def group():
        pass

    @group.command(name="greet")
    @click.argument("name")
    @click.option("--times", default=1, show_default=True, help="How | often.")
    def _(name, times):
        """Greet.

        More.
        """

    assert reference.describe_commands(group, "hello") == (
        "## greet\n\n```text\nhello greet [OPTIONS] NAME\n```\n\nGreet.\n\nMore.\n\n"
        "| option | meaning |\n| --- | --- |\n"
        "| `--times INTEGER` | How \\| often.  [default: 1] |\n"
        "| `--help` | Show this message and exit. |\n"
    )


def test_the_table_of_a_role_has_the_comments_of_each_rule_and_verb_as_its_reason():
    role = (
        "kind: Role\nrules:\n"
        "  # First\n  # reason.\n  - apiGroups: [batch]\n    resources: [jobs]\n    verbs: [get, list]\n"
        '  # Second.\n  - apiGroups: [""]\n    resources: [secrets]\n    resourceNames: [keys]\n    verbs:\n'
        "      - get  # one secret\n      - delete  # a copy\n"
        "---\nkind: RoleBinding\n"
    )
    assert rows_of(reference.describe_role(role)) == [
        ["batch", "jobs", "get, list", "all", "First reason."],
        ["core", "secrets", "get, delete", "keys", "Second. `get`: one secret. `delete`: a copy."],
    ]


def test_every_key_of_a_specification_is_described():
    rows = {row[0].strip("`"): row[1:] for row in rows_of(reference.describe_distribution_keys())}
    assert [*rows] == [*KEYS]
    assert [name for name, row in rows.items() if not all(row)] == []
    assert rows["evaluator"][:3] == ["TF", "true or false", "`false`"]
    assert rows["worker_gpus"][:3] == ["all", KEYS["worker_gpus"].kind.allowed, "`0`"]
    assert rows["ps_cpus"][2] == "worker_cpus"


def test_every_key_of_a_split_is_described():
    rows = {row[0].strip("`"): row[1:] for row in rows_of(reference.describe_split_keys())}
    assert [*rows] == [*split_parameter.KEYS]
    assert [name for name, row in rows.items() if not all(row)] == []
    assert rows["test_fraction"][:2] == [split_parameter.KEYS["test_fraction"].kind.allowed, "`0.1`"]


def test_every_trainer_and_every_parameter_is_described():
    assert re.findall(r"^## (\w+)$", reference.describe_trainers(), re.MULTILINE) == [*TRAINERS]
    for trainer in TRAINERS:
        rows = rows_of(reference.describe_training_parameters(trainer))
        assert [row[0].strip("`") for row in rows] == [field.name for field in fields(parameters_of(trainer))]
        assert ["`batch_size`", "`int`", "`32`"] in [row[:3] for row in rows]
        assert [row for row in rows if not all(row)] == []


def test_attributes_of_a_class_become_keys():
    class Entry:
        """An entry.

        Attributes:
            path: Path of
                the file.
            size: Size in bytes.
        """

    assert rows_of(reference.describe_attributes(Entry)) == [
        ["`path`", "Path of the file."],
        ["`size`", "Size in bytes."],
    ]


def test_modules_are_listed_by_their_first_sentence(tmp_path):
    (tmp_path / "__init__.py").write_text('"""A package."""')
    (tmp_path / "runner.py").write_text('"""Run the job,\nto its end. It may take long."""\n')
    (tmp_path / "follow").mkdir()
    (tmp_path / "follow" / "__init__.py").write_text('"""A room."""')
    (tmp_path / "follow" / "facts.py").write_text('"""The facts."""\n')
    assert rows_of(reference.describe_modules(tmp_path)) == [
        ["`runner.py`", "Run the job, to its end."],
        ["`follow/facts.py`", "The facts."],
    ]


@pytest.mark.parametrize("error", re.findall(r"^distribution_specification: .*", SPECIFICATION, re.MULTILINE))
def test_the_errors_of_the_page_are_the_real_ones(error):
    name, value = re.match(r"distribution_specification: '?(\w+)'? = ('[^']*'|\w+) ", error).groups()
    chosen = "MPI" if name == "ps_cpus" else "Job"
    with pytest.raises(ValueError, match=f"^{re.escape(error)}$"):
        parse_distribution({"distribution_type": chosen, name: ast.literal_eval(value)})


def test_the_table_of_the_local_runner_has_each_key_that_a_cluster_alone_can_follow():
    table = SPECIFICATION.partition("## Local runner")[2]
    assert {name for name in KEYS if name.endswith("_timeout")} <= {*re.findall(r"`(\w+)`", table)}


@pytest.mark.takes(2)
def test_every_environment_variable_of_ours_is_documented():
    prefixes = "KFP_DISTRIBUTED|AWS|MLFLOW"
    page = (PAGES / "environment-variables.md").read_text("utf-8")
    documented = {*re.findall(rf"`((?:{prefixes})_[A-Z0-9_]+)`", page)}
    rooms = [path.parent for path in reference.ROOT.glob("*/__init__.py")]
    literals = {
        node.value
        for room in rooms
        for source in room.rglob("*.py")
        for node in ast.walk(ast.parse(source.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    used = {literal for literal in literals if re.fullmatch(rf"(?:{prefixes})_[A-Z0-9_]+", literal)}
    used |= {variable_of(name, kind) for name in IMAGES[2:] for kind in ("IMAGE", "PYTHON")}
    used |= {f"MLFLOW_TRACKING_{name}" for name in ("AUTH", "USERNAME", "PASSWORD", "TOKEN")}
    assert sorted(documented ^ used) == []


def test_the_table_of_the_kfp_backend_has_each_reliance():
    rows = rows_of(reference.describe_kfp_backend())
    assert len(rows) == len(RELIANCES)
    assert {len(row) for row in rows} == {6}
    assert [row[1] for row in rows if row[0].startswith("`TaskConfig`")] == ["2.15"]


def test_the_files_in_buckets_have_the_names_of_the_code():
    page = (PAGES / "buckets.md").read_text("utf-8")
    for name in (
        TRAINING_METRICS,
        EVALUATOR_METRICS,
        FINE_TUNING,
        f"metrics/{TENSORBOARD}/",
        MODEL_MANIFEST,
        "export.json",
    ):
        assert name in page


def test_the_metrics_file_of_the_page_is_one_that_the_step_reads():
    examples = re.findall(r"```json\n(.*?)```", (PAGES / "metrics.md").read_text("utf-8"), re.DOTALL)
    of_epochs, of_steps = map(json.loads, examples)
    assert {*of_epochs} == {"replica", "epochs"}
    assert [row["epoch"] for row in of_epochs["epochs"]] == [1, 2]
    assert {*of_steps} == {"replica", "epochs", "steps"}
    assert [row["step"] for row in of_steps["steps"]] == [1, 2]


def test_the_lines_of_the_page_have_the_form_that_the_code_reads():
    page = (PAGES / "log-lines.md").read_text("utf-8")
    lines = re.findall(r"^\d{4}-.*", page, re.MULTILINE)
    entries = [parse_line(line) for line in lines]
    assert len(lines) > 5
    assert [str(entry) for entry in entries] == lines
    assert {entry.level for entry in entries} | {"WARNING"} == {*get_args(Level)}
    progress, sample = re.search("such as `(epoch .+?)`", page)[1], re.search("`(sample .+?)`", page)[1]
    assert parse_progress(progress).metrics == {"loss": 0.1234, "accuracy": 0.9812}
    assert split_sample(sample) == ("", Sample(512, 1200, 85, 10240, 240000, 51200, 4))
    states = re.search(r"The states of a replica are (.+?)\. The cause", page, re.DOTALL)[1]
    assert {*re.findall("`([a-z]+)`", states)} == {*get_args(State)}


def test_the_limits_of_data_are_those_of_the_code():
    page = (PAGES / "data.md").read_text("utf-8")
    assert f"At most {MAXIMUM_DISTINCT} different values" in page
    assert f"numbers above {data_warnings.EXACT_NUMBERS:,}," in page


def test_every_metric_of_evaluate_is_described():
    table = (PAGES / "metrics.md").read_text("utf-8").partition("metric of `evaluate`")[2]
    described = {*re.findall("^\\| `(\\w+)`", table.partition("## ")[0], re.MULTILINE)} - {"precision_CLASS"}
    summary, errors = (
        re.findall(r'^ +"(\w+)":', inspect.getsource(method), re.MULTILINE)
        for method in (Evaluation.summary, Evaluation.errors)
    )
    assert described == {*summary, *(f"{name}_error" for name in errors)}


def test_every_metric_of_a_task_is_described():
    page = (PAGES / "metrics.md").read_text("utf-8")
    table = page.partition("metric for regression")[2].partition("## ")[0]
    assert re.findall("^\\| `(\\w+)`", table, re.MULTILINE) == [*RegressionScores._fields, "examples"]
    for task, *cells, default in rows_of(page.partition("### Threshold")[2].partition("## ")[0])[1:]:
        for direction, cell in zip(("at least", "at most"), cells, strict=True):
            names = [name for name in re.findall("`(\\w+)`", cell) if not name.endswith("_CLASS")]
            assert names == [name for name, required in DIRECTIONS[task].items() if required == direction]
        assert default == f"`{next(iter(DIRECTIONS[task]))}`"


@pytest.mark.parametrize("source", ["components/evaluate/component.py", "pipelines/train_and_export.py"])
def test_the_metrics_of_a_threshold_are_described(source):
    inputs = re.sub(r"\s+", " ", (reference.ROOT / source).read_text("utf-8"))
    names = [f'"{name}"' for name in (*DIRECTIONS["classification"], "precision_CLASS")]
    assert f'Allowed for classification: {", ".join(names)} and "recall_CLASS" of a class.' in inputs
    assert 'Allowed for regression: "r2", "mae" and "rmse".' in inputs
    quoted = [f'"{name}"' for names in DIRECTIONS.values() for name, way in names.items() if way == "at most"]
    assert f"the highest good value of {', '.join(quoted[:-1])} and {quoted[-1]}, and the lowest" in inputs


def message_patterns(folder: str) -> list[str]:
    """Return a regular expression for each text of the sources with at least five literal characters."""
    patterns = []
    for source in (reference.ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text("utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            literals = [part.value if isinstance(part, ast.Constant) else None for part in parts]
            if sum(len(text) for text in literals if isinstance(text, str)) >= 5:
                patterns.append("".join(".*" if text is None else re.escape(str(text)) for text in literals))
    return patterns


@pytest.mark.parametrize("page", ["reference/command-line.md", "tutorials/on-a-cluster.md"])
def test_the_output_of_doctor_is_that_of_the_code(page):
    text = (PAGES.parent / page).read_text("utf-8")
    messages = re.findall(r"^(?:ok|warning|failed) +[\w -]+: (.+)$", text, re.MULTILINE)
    assert len(messages) > 4
    patterns = [*message_patterns("cli"), "https?://.*"]
    assert [message for message in messages if not any(re.fullmatch(p, message) for p in patterns)] == []


def test_the_tables_of_annotations_and_of_the_status_have_each_entry_of_a_job():
    annotations, _, status = (PAGES / "annotations.md").read_text("utf-8").partition("## Status of a TrainJob")
    # The first row is the head.
    names = [row[0].strip("`") for row in rows_of(annotations)[1:]]
    assert names == [*ALL_ANNOTATIONS, HASH_ANNOTATION, DISTRIBUTION_ANNOTATION]
    fields = [row[0].strip("`") for row in rows_of(status)[1:]]
    last = TimedProgress(Progress(2, 2), 1.0)
    assert fields == list(status_body(last, last)["trainerStatus"])
