"""Where the task of a training is in its pipeline: its sub-pipelines and the iterations of its loops. Pure.

All iterations of a ParallelFor and all uses of a sub-pipeline have tasks of the same name. They differ in the name of
the step's node in its Workflow.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kfp_distributed.storage.kubeflow.kfp_backend import CONTROL_NODE, ITERATION


@dataclass(frozen=True)
class TaskPath:
    """Position of a task in its pipeline.

    Attributes:
        sub_pipelines: Names of the sub-pipelines that contain the task, outermost first. Default: none.
        iterations: Index of the iteration of each ParallelFor that contains the task, from 0, outermost first. Default:
            none.
    """

    sub_pipelines: tuple[str, ...] = ()
    iterations: tuple[int, ...] = ()

    @property
    def labels(self) -> dict[str, str]:
        """The labels "sub-pipeline" and "iteration", with the levels separated by dots; without those of no level."""
        texts = {"sub-pipeline": ".".join(self.sub_pipelines), "iteration": ".".join(map(str, self.iterations))}
        return {label: text for label, text in texts.items() if text}


def without_attempts(node_name: str) -> str:
    """Remove the attempt numbers from a node name: "train(0).executor(1)" becomes "train.executor".

    The index of an iteration contains a colon and is kept: "iteration-iterations(1:item)".
    """
    return re.sub(r"\(\d+\)", "", node_name)


def parse_node_name(node_name: str) -> TaskPath:
    """Return the position of the task of an executor's node.

    Args:
        node_name: Name of the node in the Workflow, such as
            "run-h9hh4(0).root(0).tune(0).for-loop-2(0).iteration-iterations(1:1)(0).iteration-item(0).train(0).executor(0)".
    """
    nodes = without_attempts(node_name).split(".")
    # The first one is the Workflow, and the last ones are the task and its executor.
    sub_pipelines, iterations = [], []
    for node in nodes[1:-2]:
        if match := ITERATION.search(node):
            iterations.append(int(match[1]))
        elif not CONTROL_NODE.fullmatch(node):
            sub_pipelines.append(node)
    return TaskPath(tuple(sub_pipelines), tuple(iterations))


def format_task(labels: Mapping[str, str]) -> str:
    """Return the position and the name of a task as text, such as "tune/train[1]" for iteration 1.

    Args:
        labels: The label "task", and those of `TaskPath.labels`.
    """
    levels = [*filter(None, labels.get("sub-pipeline", "").split(".")), labels.get("task", "")]
    return "/".join(levels) + "".join(f"[{index}]" for index in filter(None, labels.get("iteration", "").split(".")))
