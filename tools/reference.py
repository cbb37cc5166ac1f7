"""Create the generated parts of the reference pages as Markdown, from the code, the compiled YAML and deploy/.

A page names a part by a comment of its own line, `<!-- generated: trainers -->`. tools/site_hooks.py replaces it.
"""

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import griffe
import yaml  # type: ignore[import-untyped]

from kfp_distributed.cli.main import main
from kfp_distributed.components import steps
from kfp_distributed.components.prepare_data import split_parameter
from kfp_distributed.components.train.describe.distributions import KEYS, TYPES, types_of
from kfp_distributed.pipelines.fine_tune_and_deploy import fine_tune_and_deploy
from kfp_distributed.pipelines.train_and_deploy import train_and_deploy
from kfp_distributed.pipelines.train_and_export import train_and_export
from kfp_distributed.pipelines.tune_train_and_export import tune_train_and_export
from kfp_distributed.storage.dataset import Column, DatasetManifest
from kfp_distributed.storage.kubeflow.kfp_backend import RELIANCES
from kfp_distributed.storage.model import ModelManifest
from kfp_distributed.trainers.programs.program import ELASTIC, FOLDERS, TRAINERS, parameters_of, parse_program

ROOT = Path(__file__).parents[1]

_MARKER = re.compile(r"^<!-- generated: (.+) -->$", re.MULTILINE)

_PARAMETER_TYPES = {
    "Boolean": "bool",
    "Dict": "dict",
    "Float": "float",
    "Integer": "int",
    "List": "list",
    "String": "str",
}
"""Python's names of KFP's parameter types."""


def insert_parts(markdown: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """Return a page with each `<!-- generated: NAME -->` replaced by the part of that name.

    Args:
        markdown: Text of the page.
        parts: Function that creates the Markdown of a part, by name.

    Raises:
        ValueError: No part has the name.
    """

    def create_part(marker: re.Match[str]) -> str:
        if marker[1] not in parts:
            raise ValueError(f"{marker[0]} names no part; allowed: {', '.join(sorted(parts))}")
        return parts[marker[1]]().rstrip("\n")

    return _MARKER.sub(create_part, markdown)


def generated_parts(root: Path = ROOT) -> dict[str, Callable[[], str]]:
    """Return the functions that create the generated parts, by name.

    Args:
        root: Folder of the repository.
    """
    return {
        "components": lambda: "\n".join(describe_interface(component.component_spec) for component in steps()),
        "pipelines": lambda: "\n".join(
            describe_interface(pipeline.component_spec)
            for pipeline in (train_and_export, train_and_deploy, fine_tune_and_deploy, tune_train_and_export)
        ),
        "commands": lambda: describe_commands(main, "kfp-distributed"),
        "distribution keys": describe_distribution_keys,
        "split keys": describe_split_keys,
        "trainers": describe_trainers,
        "training parameters": lambda: describe_training_parameters("keras_classifier"),
        "language parameters": lambda: describe_training_parameters("language_model"),
        "describe of train": lambda: describe_modules(root / "components" / "train" / "describe"),
        "run of train": lambda: describe_modules(root / "components" / "train" / "run"),
        "tell of train": lambda: describe_modules(root / "components" / "train" / "tell"),
        "dataset manifest": lambda: describe_attributes(DatasetManifest),
        "dataset column": lambda: describe_attributes(Column),
        "model manifest": lambda: describe_attributes(ModelManifest),
        "kfp backend": describe_kfp_backend,
        "permissions": lambda: describe_role((root / "deploy" / "rbac.yaml").read_text(encoding="utf-8")),
        "permissions for trainer": lambda: describe_role(
            (root / "deploy" / "trainer.yaml").read_text(encoding="utf-8")
        ),
        "permissions of deploy_model": lambda: describe_role(
            (root / "deploy" / "deploy-model.yaml").read_text(encoding="utf-8")
        ),
    }


def describe_kfp_backend() -> str:
    """Return the table of what the steps rely on in the KFP backend."""
    rows = [
        (
            one_line(entry.value),
            one_line(entry.since),
            one_line(entry.use),
            one_line(entry.missing),
            one_line(entry.source),
            f"`{entry.test}`",
        )
        for entry in RELIANCES
    ]
    head = "name or format", "since KFP", "what for", "if it is missing or different", "source in kubeflow/pipelines"
    return table((*head, "test"), rows)


def describe_interface(spec: Any) -> str:  # noqa: ANN401  (kfp has no types)
    """Return the section of a component or pipeline: its description, inputs and outputs.

    Args:
        spec: The `component_spec` of a KFP component or pipeline.
    """
    inputs = [
        (f"`{name}`", _type_name(entry.type), _default(entry), one_line(entry.description))
        for name, entry in (spec.inputs or {}).items()
    ]
    outputs = [
        (f"`{name}`", _type_name(entry.type), one_line(entry.description)) for name, entry in spec.outputs.items()
    ]
    return (
        f"## {spec.name.replace('-', '_')}\n\n{spec.description}\n\n"
        f"Inputs:\n\n{table(('name', 'type', 'default', 'description'), inputs)}\n"
        f"Outputs:\n\n{table(('name', 'type', 'description'), outputs)}"
    )


def _type_name(kfp_type: str) -> str:
    """Return Python's name of a parameter type, and the class of `kfp.dsl` for an artifact."""
    return _PARAMETER_TYPES.get(kfp_type) or kfp_type.removeprefix("system.").partition("@")[0]


def _default(entry: Any) -> str:  # noqa: ANN401
    if not entry.optional:
        return "required"
    return "none" if entry.default is None else f"`{json.dumps(entry.default)}`"


def describe_commands(group: click.Group, program: str, level: str = "##") -> str:
    """Return a section for each command of a command line: its usage, its help and its options.

    Args:
        group: The commands.
        program: Name of the program.
        level: Mark of the sections' headings. Default: that of the second level.
    """
    parent = click.Context(group, info_name=program)
    sections = []
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        assert command is not None, name
        context = click.Context(command, info_name=name, parent=parent)
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        # Newer versions of click have a record for an argument too.
        parameters = [entry for entry in command.get_params(context) if isinstance(entry, click.Option)]
        records = [parameter.get_help_record(context) for parameter in parameters]
        options = table(("option", "meaning"), [(f"`{record[0]}`", record[1]) for record in records if record])
        help_text = inspect.cleandoc(command.help or "")
        sections.append(f"{level} {name}\n\n```text\n{usage}\n```\n\n{help_text}\n\n{options}")
        if isinstance(command, click.Group):
            sections.append(describe_commands(command, context.command_path, f"{level}#"))
    return "\n".join(sections)


def describe_distribution_keys() -> str:
    """Return the table of the keys of a distribution_specification."""
    rows = []
    for name, key in KEYS.items():
        types = types_of(name)
        belongs_to = "all" if len(types) == len(TYPES) else ", ".join(types)
        default = key.default_text or f"`{json.dumps(key.default)}`"
        rows.append((f"`{name}`", belongs_to, key.kind.allowed, default, key.meaning.rstrip(".")))
    return table(("key", "belongs to", "allowed", "default", "meaning"), rows)


def describe_split_keys() -> str:
    """Return the table of the keys of a `split`."""
    rows = [
        (f"`{name}`", key.kind.allowed, key.default_text or f"`{json.dumps(key.default)}`", key.meaning.rstrip("."))
        for name, key in split_parameter.KEYS.items()
    ]
    return table(("key", "allowed", "default", "meaning"), rows)


def describe_attributes(described: type) -> str:
    """Return the table of the attributes that the docstring of a class lists: the keys of its JSON form."""
    attributes = section_of(described.__doc__ or "", "attributes")
    return table(("key", "meaning"), [(f"`{name}`", meaning) for name, meaning in attributes.items()])


def describe_training_parameters(trainer: str) -> str:
    """Return the table of the parameters of a built-in trainer."""
    meanings = section_of(parameters_of(trainer).__doc__ or "", "attributes")
    rows = [
        (
            f"`{parameter.name}`",
            f"`{parameter.type}`",
            "needed" if parameter.required else f"`{json.dumps(parameter.default)}`",
            meanings[parameter.name].partition(" Default:")[0],
        )
        for parameter in parse_program({"trainer": trainer}).parameters
    ]
    return table(("parameter", "type", "default", "meaning"), rows)


def describe_trainers() -> str:
    """Return a section for each built-in trainer: its docstring, its types of job and its folders."""
    return "\n".join(_describe_trainer(name, types) for name, types in TRAINERS.items())


def _describe_trainer(name: str, types: Sequence[str]) -> str:
    program = parse_program({"trainer": name})
    module = griffe.visit(name, filepath=Path(f"{name}.py"), code=program.source)
    summary = module[name].docstring.value.partition("\n\nArgs:")[0]
    elastic = "yes" if name in ELASTIC else "no"
    facts = f"Types of job: {', '.join(types)}. Elastic: {elastic}."
    folders = f"Folders that it takes: {', '.join(f'`{folder}`' for folder in FOLDERS if folder in program.folders)}."
    return f"## {name}\n\n{summary}\n\n{facts} {folders}\n"


def describe_modules(folder: Path) -> str:
    """Return the table of the modules of a folder and its rooms, with the first sentence of the docstring of each."""
    rows = []
    for path in [*sorted(folder.glob("*.py")), *sorted(folder.glob("*/*.py"))]:
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if path.name != "__init__.py":
            summary = re.split(r"(?<=\.)\s", docstring, maxsplit=1)[0]
            rows.append((f"`{path.relative_to(folder).as_posix()}`", one_line(summary)))
    return table(("module", "purpose"), rows)


def section_of(docstring: str, kind: str) -> dict[str, str]:
    """Return the entries of a section of a Google-style docstring, each description on one line.

    Args:
        docstring: The whole docstring.
        kind: Griffe's name of the section, such as "attributes" or "parameters".
    """
    entries: dict[str, str] = {}
    for section in griffe.parse_google(griffe.Docstring(docstring), warnings=False):
        if section.kind.value == kind:
            entries |= {entry.name: one_line(entry.description) for entry in section.value}
    return entries


def describe_role(text: str) -> str:
    """Return the table of the rules of a Role, with its reasons: the comment above each rule, and that of each verb.

    Args:
        text: YAML whose first document is the Role.
    """
    role = next(iter(yaml.safe_load_all(text)))
    reasons: list[str] = []
    comment: list[str] = []
    for line in text.partition("\nrules:\n")[2].splitlines():
        if line.startswith("  # "):
            comment.append(line.removeprefix("  # "))
        elif line.startswith("  - apiGroups:"):
            reasons.append(" ".join(comment))
            comment = []
        elif verb := re.fullmatch(r"      - (\w+)  # (.+)", line):
            reasons[-1] += f" `{verb[1]}`: {verb[2]}."
        elif line == "---":
            break
    rows = [
        (
            rule["apiGroups"][0] or "core",
            ", ".join(rule["resources"]),
            ", ".join(rule["verbs"]),
            ", ".join(rule.get("resourceNames", ())) or "all",
            reason,
        )
        for rule, reason in zip(role["rules"], reasons, strict=True)
    ]
    return table(("API group", "resources", "verbs", "names", "reason"), rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(_cell(text) for text in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def one_line(text: str | None) -> str:
    """Return a text with its line ends and runs of blanks as one blank each."""
    return " ".join((text or "").split())
