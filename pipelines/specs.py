"""Compiles every component and pipeline to YAML, for `kfp-distributed compile FOLDER`."""

import ast
import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from kfp import compiler

from kfp_distributed.components import Delivery, steps
from kfp_distributed.pipelines.fine_tune_and_deploy import make_fine_tune_and_deploy
from kfp_distributed.pipelines.train_and_deploy import make_train_and_deploy
from kfp_distributed.pipelines.train_and_export import make_train_and_export
from kfp_distributed.pipelines.tune_train_and_export import make_tune_train_and_export

_COMMENTED_DEFAULT = re.compile(r"^(#    \w+: (?:int|dict|list) \[Default: )(.+)(\]\n)")
"""A comment line with the default of a parameter, as Python prints it, if it may contain a whole number."""


def write_specs(
    folder: Path,
    delivery: Delivery | None = None,
    *,
    task_config: bool = False,
    replicas_image: str = "",
    replicas_images: Mapping[str, str] | None = None,
) -> list[Path]:
    """Compile every component and pipeline to YAML files in a folder, which is created if missing.

    Args:
        folder: Folder of the YAML files.
        delivery: Delivery of the library, see `steps`. Default: that of the environment.
        task_config: Whether `train` applies the settings of its KFP task to pods, see `steps`. Default: no.
        replicas_image: Image of the replicas, see `steps`. Default: none.
        replicas_images: The same by kind, see `steps`. Default: none.

    Returns:
        The files written.
    """
    library_steps = steps(
        delivery, task_config=task_config, replicas_image=replicas_image, replicas_images=replicas_images
    )
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    deliverables = {
        **library_steps._asdict(),
        "train_and_export": make_train_and_export(library_steps),
        "train_and_deploy": make_train_and_deploy(library_steps),
        "fine_tune_and_deploy": make_fine_tune_and_deploy(library_steps),
        "tune_train_and_export": make_tune_train_and_export(library_steps),
    }
    for name, deliverable in deliverables.items():
        files.append(folder / f"{name}.yaml")
        compiler.Compiler().compile(deliverable, str(files[-1]))
        files[-1].write_text(with_stable_defaults(files[-1].read_text(encoding="utf-8")), encoding="utf-8")
    return files


def with_stable_defaults(text: str) -> str:
    """Return a compiled pipeline or component whose defaults are the same in each compilation.

    kfp keeps every number as a double, so it writes an int as 15.0. Here it becomes 15, which KFP reads as the same
    value. A default that is declared as a float stays as it is. The comments at the top show dicts
    in the order of a protobuf map, which differs between processes. Here their keys are sorted.

    Args:
        text: Output of kfp's compiler: comment lines, then one or two YAML documents.
    """
    lines = text.splitlines(keepends=True)
    comments = list(takewhile(lambda line: line.startswith("#"), lines))
    header = "".join(_COMMENTED_DEFAULT.sub(_stable_comment, line) for line in comments)
    documents = [_with_whole_defaults(document) for document in yaml.safe_load_all("".join(lines[len(comments) :]))]
    return header + dump(*documents)


def dump(*documents: Any) -> str:  # noqa: ANN401  (any YAML)
    """Return YAML as kfp writes it, but with programs as blocks of lines, which people can read."""
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=True, width=120)
    return text


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """Writes text of several lines as a block."""

    def represent_text(self, text: str) -> Any:  # noqa: ANN401
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _Dumper.represent_text)


def _stable_comment(line: re.Match[str]) -> str:
    """Return a line that `_COMMENTED_DEFAULT` matches with whole numbers and sorted keys."""
    start, default, end = line.groups()
    return f"{start}{_whole(ast.literal_eval(default))}{end}"


def _with_whole_defaults(node: Any) -> Any:  # noqa: ANN401  (any YAML)
    if isinstance(node, list):
        return [_with_whole_defaults(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: _with_whole_defaults(value) for key, value in node.items()}
    if "defaultValue" in node and node.get("parameterType") != "NUMBER_DOUBLE":
        node["defaultValue"] = _whole(node["defaultValue"])
    return node


def _whole(value: Any) -> Any:  # noqa: ANN401  (any YAML)
    """Return a value whose whole numbers are ints and whose dicts are sorted by key."""
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in sorted(value.items())}
    return int(value) if isinstance(value, float) and value.is_integer() else value
