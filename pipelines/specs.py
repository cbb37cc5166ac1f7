"""Compiles every component and pipeline to YAML: `python -m kfp_distributed.pipelines.specs FOLDER`."""

import argparse
import ast
import re
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from kfp import compiler

from kfp_distributed.components import Delivery, steps
from kfp_distributed.pipelines.train_and_export import make_train_and_export

_COMMENTED_DEFAULT = re.compile(r"^(#    \w+: (?:int|dict|list) \[Default: )(.+)(\]\n)")
"""A comment line with the default of a parameter, as Python prints it, if it is or may contain a whole number."""


def write_specs(folder: Path, delivery: Delivery | None = None, *, task_config: bool = False) -> list[Path]:
    """Compile every component and pipeline into a folder, which is made if missing.

    Args:
        folder: Where the YAML files go.
        delivery: As of `steps`.
        task_config: As of `steps`.

    Returns:
        The files written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    made = steps(delivery, task_config=task_config)
    for name, deliverable in {**made._asdict(), "train_and_export": make_train_and_export(made)}.items():
        files.append(folder / f"{name}.yaml")
        compiler.Compiler().compile(deliverable, str(files[-1]))
        files[-1].write_text(with_stable_defaults(files[-1].read_text(encoding="utf-8")), encoding="utf-8")
    return files


def with_stable_defaults(text: str) -> str:
    """Return a compiled pipeline or component with defaults that read the same in each compilation.

    kfp keeps every number as a double, and so writes 15.0 also for an int or in a dict. Here it becomes 15, which KFP
    reads as the same value. A default that is declared as a float stays as it is. The comments at the top show dicts
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
    """Return YAML as kfp writes it, but with programs as blocks of lines, which people are to read."""
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=True, width=120)
    return text


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """Writes a text of several lines as such a block."""

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


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m kfp_distributed.pipelines.specs", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the YAML files go")
    parser.add_argument("--image", default="", help="image of the steps, with the library inside")
    parser.add_argument("--evaluate-image", default="", help="image of evaluate, where that is another one")
    parser.add_argument("--package", default="", help="requirement or URL of the library, for pip")
    parser.add_argument(
        "--task-config", action="store_true", help="what is set on `train` is for its pods; takes KFP 2.15"
    )
    options = parser.parse_args()
    try:
        delivery = Delivery.from_options(options.image, options.evaluate_image, options.package)
    except ValueError as error:
        parser.error(str(error))
    for file in write_specs(options.folder, delivery, task_config=options.task_config):
        print(f"{file}  {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
