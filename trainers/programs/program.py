"""Parses a train_specification (a built-in trainer, a Python function or a command) and checks its parameters."""

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, fields
from importlib.resources import files
from typing import Any, NoReturn

from kfp_distributed.trainers.programs.evaluation_parameters import LanguageEvaluationParameters
from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters, check_together
from kfp_distributed.trainers.programs.signature import Parameter, read_signature
from kfp_distributed.trainers.programs.training_parameters import TrainingParameters

TRAINERS = {
    "keras_classifier": ("Job", "TF"),
    "keras_horovod": ("MPI",),
    "torch_classifier": ("Job", "PyTorch"),
    "torch_horovod": ("MPI",),
    "language_model": ("Job", "PyTorch"),
}
"""The built-in trainers, and the types of job that each one supports. Each is a function in the module of its name."""

ELASTIC = ("keras_horovod", "torch_classifier")
"""The built-in trainers that continue when a worker is lost."""

FOLDERS = ("train_dir", "validation_dir", "model_dir", "checkpoint_dir", "metrics_dir", "tensorboard_dir")
"""Names of the local folders that a program receives. A train_parameter must not have one of these names."""

LANGUAGE_MODEL = "language_model"
"""The built-in trainer of language models. The others learn to predict a label."""

LANGUAGE_EVALUATION = "language_evaluation"
"""What runs in the job of `evaluate_language_model`: a program in the form of a trainer, which is offered nowhere."""

OF_TEXTS = (LANGUAGE_MODEL, LANGUAGE_EVALUATION)
"""Those of the built-in programs whose rows are texts, all of which each rank reads."""

JOB_TYPES = {**TRAINERS, LANGUAGE_EVALUATION: TRAINERS[LANGUAGE_MODEL]}
"""All built-in programs, and the types of job that each one supports."""

_Parameters = type[TrainingParameters | LanguageModelParameters | LanguageEvaluationParameters]

ROWS = ("download", "stream", "all")
"""How a function or command gets training rows: those of its rank as Parquet files ("download") or by `rows` while it
trains ("stream"), or those of all ranks as Parquet files ("all")."""


@dataclass(frozen=True)
class Program:
    """A parsed train_specification.

    Attributes:
        kind: Its form: "trainer", "function" or "command".
        name: Name of the function; for a command its first word.
        source: Source code that defines the function; "" for a command.
        command: Words of the command; empty for the other forms.
        parameters: Parameters of the function, without the folders.
        folders: Those of FOLDERS that are parameters of the function; all of them for a command.
        others: Type of additional train_parameters, which a command and `**kwargs` accept; None if none are accepted.
        rows: How the program gets its training rows, one of ROWS.
    """

    kind: str
    name: str
    source: str = ""
    command: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    folders: tuple[str, ...] = FOLDERS
    others: Parameter | None = None
    rows: str = ROWS[0]

    @property
    def reads_store(self) -> bool:
        """Whether it is a trainer that reads its rows from the store itself, and stores its checkpoints there."""
        return self.kind == "trainer" and self.rows == "stream"


def parameters_of(trainer: str) -> _Parameters:
    """Return the class of the parameters of a built-in program."""
    if trainer == LANGUAGE_EVALUATION:
        return LanguageEvaluationParameters
    return LanguageModelParameters if trainer == LANGUAGE_MODEL else TrainingParameters


def parameters_name(program: str) -> str:
    """Return what users call the parameters of a built-in program, for errors."""
    return "evaluation_parameters" if program == LANGUAGE_EVALUATION else f"train_parameters of {program}"


def _parameters_of(trainer: str) -> tuple[Parameter, ...]:
    own = []
    for field in fields(parameters_of(trainer)):
        is_required = field.default is MISSING and field.default_factory is MISSING
        default = field.default if field.default_factory is MISSING else field.default_factory()
        own.append(Parameter(field.name, str(field.type), is_required, None if is_required else default))
    return tuple(own)


def parse_program(specification: Mapping[str, Any] | str, trainers: Collection[str] = tuple(TRAINERS)) -> Program:
    """Parse a train_specification.

    Args:
        specification: The dict, or its JSON text.
        trainers: Names of the built-in programs that are allowed. Default: those of TRAINERS.

    Raises:
        ValueError: It has not exactly one of the three forms, an unknown key, or a program that cannot run.
    """
    values = _read_dict("train_specification", specification)
    kinds = [kind for kind in ("trainer", "function", "command") if kind in values]
    if len(kinds) != 1:
        _refuse("train_specification", specification, "one of the keys trainer, function, command")
    kind = kinds[0]
    allowed = [kind, "image", "packages"] + ["source"] * (kind == "function") + ["rows"] * (kind != "trainer")
    for key, value in values.items():
        if key not in allowed:
            _refuse("train_specification: a key", key, ", ".join(allowed))
        form = list if key in ("command", "packages") else str
        if not isinstance(value, form) or not all(isinstance(word, str) for word in value):
            _refuse(f"train_specification: {key}", value, "a list of strings" if form is list else "a string")
        if key == "packages" and re.search(r"://[^/\s]*@", " ".join(value)):
            raise ValueError(
                "train_specification: packages contains a URL with a password, which logs and manifests would show; "
                "set PIP_INDEX_URL or PIP_EXTRA_INDEX_URL on the task from a Secret"
            )
    name, source, rows = values[kind], values.get("source", ""), values.get("rows", ROWS[0])
    if rows not in ROWS:
        _refuse("train_specification: rows", rows, ", ".join(ROWS))
    if kind == "command":
        if not name:
            _refuse("train_specification: command", name, "at least the name of a program")
        for word in {*re.findall(r"(?<!\$){(\w*dir)}", " ".join(name))} - {*FOLDERS}:
            _refuse("train_specification: command: a folder", f"{{{word}}}", ", ".join(FOLDERS))
        return Program(kind, name[0], command=tuple(name), others=Parameter("parameters"), rows=rows)
    if kind == "trainer":
        if name not in trainers:
            command = '; or a command, as a list of words such as ["python", "train.py"]'
            _refuse("train_specification: trainer", name, ", ".join(TRAINERS) + command * bool(re.search(r"\W", name)))
        source = (files("kfp_distributed.trainers") / f"{name}.py").read_text(encoding="utf-8")
    parameters, others = read_signature(source, name)
    folders = tuple(parameter.name for parameter in parameters if parameter.name in FOLDERS)
    if "model_dir" not in folders:
        raise ValueError(f"{name}() has no parameter model_dir, the folder that the model is saved in; add it")
    own = tuple(parameter for parameter in parameters if parameter.name not in FOLDERS)
    if kind == "trainer":
        assert [parameter.name for parameter in own] == ["parameters"], f"{name}() must have folders and parameters"
        own, rows = _parameters_of(name), "all" if name in OF_TEXTS else "stream"
    return Program(kind, name, source, (), own, folders, others, rows)


def check_parameters(program: Program, parameters: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Return the train_parameters, converted to the types in the program's signature.

    KFP may change numbers and booleans to "5", 5.0, "5.0" or "true". Whole numbers become ints at any depth, unless the
    annotation is float.

    Args:
        program: The program.
        parameters: The dict, or its JSON text. None means no parameters.

    Raises:
        ValueError: A parameter is missing, unknown or of the wrong type, or a number of a built-in trainer is out of
            its range, or its objective ignores one. The message names the parameter and what is allowed.
    """
    values = _read_dict("train_parameters", parameters)
    known, others = _by_name(program), program.others
    for name in values:
        if program.kind == "command" and not re.fullmatch(r"\w[\w.-]*", name):
            _refuse("train_parameters: a name", name, "letters, digits, '_', and '-' and '.' after the first character")
        if name in FOLDERS or not (name in known or others):
            names = ", ".join(known) or "none"
            raise ValueError(f"train_parameters: {program.name} has no parameter {name!r} to set; it has: {names}")
    missing = [name for name, parameter in known.items() if parameter.required and name not in values]
    if missing:
        raise ValueError(f"train_parameters: {program.name} needs {', '.join(missing)}")
    try:
        converted = {name: _parameter(program, name).convert(value) for name, value in values.items()}
        for name, value in converted.items() if program.kind == "trainer" else ():
            _check_range(parameters_of(program.name), name, value)
        if program.kind == "trainer" and program.name == LANGUAGE_MODEL:
            check_together(converted)
    except ValueError as error:
        raise ValueError(f"{parameters_name(program.name)}: {error}") from None
    return converted


def function_arguments(program: Program, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a function besides its folders.

    Those of a user's function are in the types of its signature: also tuples, sets and paths. A trainer has one.

    Args:
        program: The function or trainer.
        parameters: Checked train_parameters, as JSON.
    """
    arguments = {name: _parameter(program, name).argument(value) for name, value in parameters.items()}
    return {"parameters": parameters_of(program.name)(**arguments)} if program.kind == "trainer" else arguments


def _by_name(program: Program) -> dict[str, Parameter]:
    return {parameter.name: parameter for parameter in program.parameters}


def _parameter(program: Program, name: str) -> Parameter:
    others = program.others
    return _by_name(program).get(name) or Parameter(name, others.type if others else "")


def _check_range(parameters: _Parameters, name: str, value: Any) -> None:  # noqa: ANN401
    """Check that a number of a built-in trainer is in its range.

    Raises:
        ValueError: It is not.
    """
    values = value if isinstance(value, list) else [value]
    numbers = [number for number in values if not isinstance(number, bool | str | None)]
    may_be_zero, limit = name in parameters.may_be_zero, parameters.below.get(name, math.inf)
    if any(number < 0 or (number == 0 and not may_be_zero) or number >= limit for number in numbers):
        below = f", and less than {limit}" if name in parameters.below else ""
        raise ValueError(f"{name} is {value!r}; allowed is {'0 or more' if may_be_zero else 'more than 0'}{below}")


def check_batch(batch_size: int, ranks: int) -> None:
    """Check that a step has a row for each rank.

    Args:
        batch_size: Rows of one step over all ranks.
        ranks: Number of processes or devices that train together.

    Raises:
        ValueError: It has not.
    """
    if batch_size < ranks:
        raise ValueError(
            f"batch_size is {batch_size}, but {ranks} ranks train together, and each needs a row of an update; "
            f"set batch_size to {ranks} or more, or use fewer ranks"
        )


def command_line(program: Program, folders: Mapping[str, str], parameters: Mapping[str, Any]) -> list[str]:
    """Return the words of a command, with its folders replaced and its parameters appended as --NAME=VALUE.

    A parameter that is None is left out. Booleans, lists and dicts are written as JSON.

    Args:
        program: The command.
        folders: Path of each folder, by name.
        parameters: Checked train_parameters.
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
        parsed = json.loads(value) if isinstance(value, str) else value
        return {**({} if parsed is None else parsed)}
    except (TypeError, ValueError):
        _refuse(key, value, "a dict")


def _refuse(name: str, value: object, allowed: str) -> NoReturn:
    raise ValueError(f"{name} is {value!r:.200}; allowed: {allowed}") from None
