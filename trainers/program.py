"""What a job runs: a trainer of ours, a Python function or a command, and the parameters it takes."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NoReturn

from kfp_distributed.trainers.signature import Parameter, read_signature

TRAINERS = {
    "keras_classifier": ("Job", "TF"),
    "keras_horovod": ("MPI",),
    "torch_classifier": ("Job", "PyTorch"),
    "torch_horovod": ("MPI",),
}
"""Our trainers, and the types of job that each is for: each is a function in the file of its name beside this one."""

ELASTIC = ("keras_horovod", "torch_classifier")
"""Those of our trainers that go on when a worker is lost."""

FOLDERS = ("train_dir", "validation_dir", "model_dir", "checkpoint_dir", "metrics_dir", "tensorboard_dir")
"""The local folders that a program is given by name; no train_parameter may be called so."""


@dataclass(frozen=True)
class Program:
    """A train_specification that was read and checked.

    Attributes:
        kind: Which of the three forms it is: "trainer", "function" or "command".
        name: The function's name; for a command its first word.
        source: The source text that has the function; "" for a command.
        command: The command's words; empty for the other forms.
        parameters: What train_parameters may name, the folders left out.
        folders: Those of FOLDERS that the function's signature has; all of them for a command.
        others: The type of further train_parameters, which a command and `**kwargs` take; None if there may be none.
    """

    kind: str
    name: str
    source: str = ""
    command: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    folders: tuple[str, ...] = FOLDERS
    others: Parameter | None = None


def parse_program(specification: Mapping[str, Any] | str) -> Program:
    """Read a train_specification, given as a dict or as its JSON text.

    Raises:
        ValueError: It has none or two of the forms, an unknown key, or a program that cannot run.
    """
    given = _read_dict("train_specification", specification)
    kinds = [kind for kind in ("trainer", "function", "command") if kind in given]
    if len(kinds) != 1:
        _refuse("train_specification", specification, "one of the keys trainer, function, command")
    kind = kinds[0]
    allowed = [kind, "image", "packages"] + ["source"] * (kind == "function")
    for key, value in given.items():
        if key not in allowed:
            _refuse("train_specification: a key", key, ", ".join(allowed))
        form = list if key in ("command", "packages") else str
        if not isinstance(value, form) or not all(isinstance(word, str) for word in value):
            _refuse(f"train_specification: {key}", value, "a list of strings" if form is list else "a string")
        if key == "packages" and re.search(r"://[^/\s]*@", " ".join(value)):
            raise ValueError(
                "train_specification: packages has an address with a password, which logs and manifests would show; "
                "set PIP_INDEX_URL or PIP_EXTRA_INDEX_URL on the task from a Secret"
            )
    name, source = given[kind], given.get("source", "")
    if kind == "command":
        if not name:
            _refuse("train_specification: command", name, "at least a program's name")
        for word in {*re.findall(r"(?<!\$){(\w*dir)}", " ".join(name))} - {*FOLDERS}:
            _refuse("train_specification: command: a folder", f"{{{word}}}", ", ".join(FOLDERS))
        return Program(kind, name[0], command=tuple(name), others=Parameter("parameters"))
    if kind == "trainer":
        if name not in TRAINERS:
            _refuse("train_specification: trainer", name, ", ".join(TRAINERS))
        source = (files("kfp_distributed.trainers") / f"{name}.py").read_text(encoding="utf-8")
    parameters, others = read_signature(source, name)
    folders = tuple(parameter.name for parameter in parameters if parameter.name in FOLDERS)
    if "model_dir" not in folders:
        raise ValueError(f"{name}() has no parameter model_dir: the folder in which it has to leave the model")
    own = tuple(parameter for parameter in parameters if parameter.name not in FOLDERS)
    return Program(kind, name, source, (), own, folders, others)


def check_parameters(program: Program, parameters: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Return the train_parameters with the types that the program's signature asks for.

    Numbers and booleans may come as KFP writes them ("5", 5.0, "5.0", "true"). Whole numbers become ints, at any depth,
    unless the annotation asks for float.

    Raises:
        ValueError: A parameter is missing, unknown or of a wrong type, or one of a trainer of ours is not more than
            0; names it and what is allowed.
    """
    given = _read_dict("train_parameters", parameters)
    known, others = {parameter.name: parameter for parameter in program.parameters}, program.others
    for name in given:
        if program.kind == "command" and not re.fullmatch(r"\w[\w.-]*", name):
            _refuse("train_parameters: a name", name, "letters, digits and '_', and behind the first '-' and '.'")
        if name in FOLDERS or not (name in known or others):
            names = ", ".join(known) or "none"
            raise ValueError(f"train_parameters: {program.name} has no parameter {name!r} to set; it has: {names}")
    missing = [name for name, parameter in known.items() if parameter.required and name not in given]
    if missing:
        raise ValueError(f"train_parameters: {program.name} needs {', '.join(missing)}")
    try:
        converted = {
            name: (known.get(name) or Parameter(name, others.type if others else "")).convert(value)
            for name, value in given.items()
        }
        for name, value in converted.items() if program.kind == "trainer" else ():
            _check_positive(name, value)
    except ValueError as error:
        raise ValueError(f"train_parameters of {program.name}: {error}") from None
    return converted


def _check_positive(name: str, value: Any) -> None:  # noqa: ANN401
    """Refuse a number of one of our trainers that no training can take: only a seed may be 0."""
    numbers = value if isinstance(value, list) else [value]
    if any(number < 0 or (number == 0 and name != "seed") for number in numbers if not isinstance(number, bool)):
        raise ValueError(f"{name} is {value!r}; allowed is {'0 or ' * (name == 'seed')}more than 0")


def command_line(program: Program, folders: Mapping[str, str], parameters: Mapping[str, Any]) -> list[str]:
    """Return a command's words with the folders put in and the parameters added as --name=value.

    A parameter that is None is left out; true and false, lists and dicts are written as JSON.
    """
    words = list(program.command)
    for name, folder in folders.items():
        words = [word.replace("{" + name + "}", folder) for word in words]
    for name, value in parameters.items():
        if value is not None:
            words.append(f"--{name}={value if isinstance(value, str) else json.dumps(value)}")
    return words


def _read_dict(key: str, value: Mapping[str, Any] | str | None) -> dict[str, Any]:
    try:
        found = json.loads(value) if isinstance(value, str) else value
        return {**({} if found is None else found)}
    except (TypeError, ValueError):
        _refuse(key, value, "a dict")


def _refuse(what: str, value: object, allowed: str) -> NoReturn:
    raise ValueError(f"{what} is {value!r:.200}; allowed: {allowed}") from None
