"""The position of a task in its pipeline."""

import re

import pytest

from kfp_distributed.components.train.describe.task_path import TaskPath, format_task, parse_node_name
from kfp_distributed.components.train.run.training_request.request import job_name

LOOP = "for-loop-2(0).iteration-iterations({0}:{0})(0).iteration-item(0)"

PATHS = {
    "": (TaskPath(), "train"),
    LOOP.format(1): (TaskPath((), (1,)), "train[1]"),
    "tune(0)": (TaskPath(("tune",)), "tune/train"),
    f"{LOOP.format(3)}.tune(0)": (TaskPath(("tune",), (3,)), "tune/train[3]"),
    f"tune(0).{LOOP.format(0)}.condition-branches-1(0).condition-2(0).inner-2(0).{LOOP.format(12)}": (
        TaskPath(("tune", "inner-2"), (0, 12)),
        "tune/inner-2/train[0][12]",
    ),
    "exit-handler-1(0)": (TaskPath(), "train"),
}


@pytest.mark.parametrize(("nodes", "path", "text"), [(nodes, *expected) for nodes, expected in PATHS.items()])
def test_the_name_of_a_node_has_sub_pipelines_and_iterations(nodes, path, text):
    around = f".{nodes}" if nodes else ""
    assert parse_node_name(f"digits-h9hh4(1).root(1){around}.train(0).executor(2)") == path
    assert format_task({"run": "a", "task": "train", **path.labels}) == text


@pytest.mark.parametrize("node_name", ["", "another-workflow", "a.b"])
def test_other_names_have_no_path(node_name):
    assert parse_node_name(node_name) == TaskPath()


@pytest.mark.parametrize(
    ("path", "readable"),
    [
        (TaskPath(), "train"),
        (TaskPath(("tune",), (1,)), "tune-train-1"),
        (TaskPath(("a" * 40,), (0, 12)), f"{'a' * 25}-0-12"),
        (TaskPath((), (10**40,)), "[a-z][a-z0-9-]{0,35}"),
    ],
)
def test_the_name_of_a_job_has_the_path(path, readable):
    name = job_name("train", ("run",), path)
    assert re.fullmatch(f"{readable}-[0-9a-f]{{12}}", name)
    assert re.fullmatch("[a-z]([a-z0-9-]{0,48}[a-z0-9])", name)
