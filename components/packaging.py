"""How a step's code reaches its container: inside the compiled YAML, in an image, or as a package from an index.

Inside the YAML is the default and needs nothing from anybody: a stock Python image runs it. The step then carries
the modules it needs and no others, because Argo keeps some eleven copies of a task's YAML in a Workflow of at most
1 MB. For the same reason the code travels minified: without comments, docstrings and annotations, and with short
names for local variables.
"""

import ast
import base64
import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyppmd
import python_minifier
from kfp import dsl
from python_minifier import RemoveAnnotationsOptions
from python_minifier.expression_printer import ExpressionPrinter
from python_minifier.f_string import OuterFString

from kfp_distributed.components.shaking import shaken
from kfp_distributed.trainers.requirements import RETRY

STOCK_IMAGE = "python:3.11"

_NAMESPACE = "kfp_distributed"
# What functions of users import inside replicas.
_PUBLIC = ("kfp_distributed/storage/dataset.py",)
_ROOMS = ("components", "trainers", "storage", "processes", "pipelines")
_KEPT_IMPORTS = (_NAMESPACE, "__future__")

# Base 85 takes 1.25 characters a byte, base 64 takes 1.33. Three of its characters mean something to KFP, to Argo or to
# a shell, and three are six characters each in the JSON that Argo stores, for Go escapes them. They are written as six
# that base 85 leaves unused.
_RISKY, _HARMLESS = "{}$&<>", ",./:[]"

INSTALLED_VARIABLE = "KFP_DISTRIBUTED_INSTALLED"
"""Environment variable: "true" where a step runs in the Python that compiled it, and takes the modules from there."""

# It stands in each step, minified.
_UNPACK = """\
import base64, os, pathlib, sys, tempfile
_archive = "{archive}"
if os.environ.get("{installed}") != "true":
 import pyppmd
 _modules = tempfile.TemporaryDirectory()
 _packed = base64.b85decode(_archive.translate(str.maketrans("{harmless}", "{risky}")))
 _texts = pyppmd.decompress(_packed, max_order={order}, mem_size={memory}).decode().split("\\0")
 for _name, _text in zip(_texts[::2], _texts[1::2]):
  _file = pathlib.Path(_modules.name, _name)
  _file.parent.mkdir(parents=True, exist_ok=True)
  _file.write_text(_text, encoding="utf-8")
 sys.path.insert(0, _modules.name)
"""


# PPMd, of which text takes an eighth less than of bzip2: that much more of a Workflow is left to other tasks. Longer
# contexts and more memory gain nothing.
_ORDER, _MEMORY = 16, 1 << 24
_UNPACKER = "pyppmd>=1.1,<2"
# So many orders of the modules are tried, and the one that packs best is taken; all 73 of a pipeline gain 0.01 % more.
_ORDERS = 16

# Of what is set on a task the step itself needs the environment alone: where its object store is may be said there.
_PASSED_ON = [
    dsl.TaskConfigPassthrough(field=field, apply_to_task=field is dsl.TaskConfigField.ENV)
    for field in dsl.TaskConfigField
]


def _print_f_string(printer: Any, node: ast.JoinedStr) -> None:  # noqa: ANN401  (the minifier has no types)
    printer.printer.fstring(str(OuterFString(node, pep701=False)))  # type: ignore[no-untyped-call]


# Under Python 3.12 the minifier writes f-strings that only 3.12 reads; the step's image has an older one.
ExpressionPrinter.visit_JoinedStr = _print_f_string  # type: ignore[method-assign]


@dataclass(frozen=True)
class Delivery:
    """Where a compiled step finds our modules.

    At most one of the two is set; with neither the modules travel inside the YAML.

    Attributes:
        image: A container image that has kfp-distributed and the step's packages installed.
        package: A requirement or address that pip can install, such as
            "https://files.example.com/kfp_distributed-0.1.0-py3-none-any.whl".
    """

    image: str = ""
    package: str = ""

    def __post_init__(self) -> None:
        if self.image and self.package:
            raise ValueError(
                f"image={self.image!r} and package={self.package!r} are both given: "
                "name the image alone if it holds kfp-distributed, else the package alone."
            )


def make_step(
    function: Callable[..., Any],
    *,
    packages: Sequence[str],
    delivery: Delivery,
    started_by_name: Sequence[str] = (),
    trainers: Sequence[str] = (),
    task_config: bool = False,
) -> Any:  # noqa: ANN401  (kfp exports no type for its components)
    """Makes the KFP component of one step.

    Args:
        function: The step's signature and its few lines of body, which import what does the work.
        packages: What pip installs into a stock image before the step starts.
        delivery: Where the step finds our modules.
        started_by_name: Modules to carry beside those that the function's body imports, and what they import in turn.
        trainers: More such modules, whose annotations tell what parameters a trainer takes.
        task_config: Whether KFP is asked for what is set on the task, for a parameter of the type TaskConfig.

    Returns:
        A component to call inside a `@dsl.pipeline` function.
    """
    if delivery.image:
        base: dict[str, Any] = {"base_image": delivery.image, "install_kfp_package": False}
    else:
        installed = [delivery.package, *packages] if delivery.package else [*packages, _UNPACKER]
        base = {"base_image": STOCK_IMAGE, "packages_to_install": installed}
    component = dsl.component(**base, task_config_passthroughs=_PASSED_ON if task_config else None)(function)
    command = component.component_spec.implementation.container.command
    if not delivery.image:
        # kfp writes shell that installs pip where there is none, which a stock image has, and runs it once.
        _, _, installs = command[2].rpartition("\nfi\n")
        command[2] = RETRY + installs.strip().replace("python3 -m pip install", "retry python3 -m pip install")
        command[5] = re.sub(" +", " ", command[5])
    if not task_config:
        component = _without_task_config(component)
    if delivery.image or delivery.package:
        return component
    # kfp's own embedded_artifact_path packs owner and time of each file too, so that no two compilations are equal:
    # the committed YAML could not be checked and KFP's cache would never hit.
    body = python_minifier.minify(
        command[-1],
        remove_literal_statements=True,
        remove_annotations=False,
        rename_locals=False,
        hoist_literals=False,
    )
    unpack_first = _UNPACK.format(
        archive=_archive(body, tuple(started_by_name), tuple(trainers)),
        installed=INSTALLED_VARIABLE,
        harmless=_HARMLESS,
        risky=_RISKY,
        order=_ORDER,
        memory=_MEMORY,
    )
    first = python_minifier.minify(unpack_first, rename_globals=True, preserve_globals=["_archive"])
    command[-1] = f"{first}\n{body}"
    return component


def _without_task_config(component: Any) -> Any:  # noqa: ANN401
    """The component without its parameters of the type TaskConfig, which a backend before 2.15 refuses.

    The function still takes them: kfp gives it an empty one of what a component does not declare.
    """
    spec = component.component_spec
    spec.inputs = {name: each for name, each in spec.inputs.items() if each.type != dsl.TaskConfig.__name__}
    return type(component)(spec, component.python_func)


def _archive(body: str, started_by_name: tuple[str, ...], trainers: tuple[str, ...]) -> str:
    """The modules that a step carries, packed: as they were packed last, where nothing has changed since."""
    made_of = repr((_sources_hash(), body, started_by_name, trainers))
    # To minify them all takes seconds, and whoever imports the steps waits for it.
    cached = cache_folder() / hashlib.sha256(made_of.encode()).hexdigest()
    with suppress(OSError):
        return cached.read_text(encoding="ascii")
    modules = read_modules([*imported_modules(body), *started_by_name], trainers)
    # The entry program reaches a trainer's function by its name, and functions of users what is public.
    functions = [name.rpartition(".")[2] for name in trainers]
    archive = pack(shaken(modules, [body, *functions], _PUBLIC if trainers else ()))
    with suppress(OSError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        new = cached.with_name(f"{cached.name}-{os.getpid()}")
        new.write_text(archive, encoding="ascii")
        new.replace(cached)
    return archive


def cache_folder() -> Path:
    """Where packed modules are kept between two imports: in `$XDG_CACHE_HOME`, else in ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - Path's own raises
    return Path(home, "kfp-distributed", "packed")


@cache
def _sources_hash() -> str:
    """Of all that may be carried, and of what packs it."""
    packers = [version(name) for name in ("python-minifier", "pyppmd")]
    found = hashlib.sha256(repr((sys.version_info, packers)).encode())
    home = Path(__file__).parents[1]
    for file in sorted(file for room in _ROOMS for file in (home / room).rglob("*.py")):
        found.update(str(file.relative_to(home)).encode() + file.read_bytes())
    return found.hexdigest()


def imported_modules(source: str) -> list[str]:
    """Names the modules of ours that a source imports, wherever in it the import stands, in alphabetical order."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{_NAMESPACE}."):
            package = _file_of(node.module)
            members = [alias.name for alias in node.names]
            modules = {name for name in members if package and package.with_name(f"{name}.py").exists()}
            if package is None or package.name != "__init__.py":
                modules = set()
            names.update(f"{node.module}.{name}" for name in modules)
            if len(modules) < len(members):
                names.add(node.module)
    return sorted(name for name in names if name.startswith(f"{_NAMESPACE}."))


def read_modules(names: Sequence[str], trainers: Sequence[str] = ()) -> dict[str, str]:
    """Reads modules and all modules of ours that they import, minified.

    Args:
        names: Full names of the modules to begin with.
        trainers: More such modules, which keep their annotations: a trainer's parameters are checked by them.

    Returns:
        Source by path relative to the import root. A package is there as an empty `__init__.py`, unless something
        imports from the package itself.

    Raises:
        ModuleNotFoundError: A name is no module.
    """
    sources: dict[str, str] = {}
    waiting = [*names, *trainers]
    while waiting:
        name = waiting.pop()
        file = _file_of(name)
        if file is None:
            raise ModuleNotFoundError(f"{name} is not a module of this installation.")
        path = name.replace(".", "/") + ("/__init__.py" if file.name == "__init__.py" else ".py")
        if sources.get(path):
            continue
        text = file.read_text(encoding="utf-8")
        sources[path] = _minified(file, keep_annotations=name in trainers)
        waiting += imported_modules(text)
        for package in list(Path(path).parents)[:-2]:
            sources.setdefault(f"{package.as_posix()}/__init__.py", "")
    return dict(sorted(sources.items()))


def pack(sources: Mapping[str, str]) -> str:
    """Packs sources into one line of ASCII, the same line for the same sources.

    Raises:
        RuntimeError: In none of the orders that are tried can they be unpacked.
    """
    items = list(sources.items())
    orders = [items[first:] + items[:first] for first in range(min(len(items), _ORDERS))]
    # pyppmd 1.3 cannot unpack one in ten of its own archives of long texts; another order is another text.
    for archive in sorted(map(_packed, orders), key=len):
        with suppress(ValueError):
            if unpack(archive) == sources:
                return archive
    raise RuntimeError(f"pyppmd cannot unpack what it packs of {', '.join(sources)}: install another version of it.")


def _packed(items: Sequence[tuple[str, str]]) -> str:
    text = "\0".join(part for item in items for part in item)
    packed = pyppmd.compress(text.encode(), max_order=_ORDER, mem_size=_MEMORY)
    return base64.b85encode(packed).decode("ascii").translate(str.maketrans(_RISKY, _HARMLESS))


def unpack(archive: str) -> dict[str, str]:
    """Reads what `pack` made."""
    packed = archive.translate(str.maketrans(_HARMLESS, _RISKY))
    text = bytes(pyppmd.decompress(base64.b85decode(packed), max_order=_ORDER, mem_size=_MEMORY))  # type: ignore[arg-type]
    parts = text.decode().split("\0")
    return dict(zip(parts[::2], parts[1::2], strict=True))


@cache
def _minified(file: Path, *, keep_annotations: bool) -> str:
    annotations = RemoveAnnotationsOptions(
        remove_variable_annotations=not keep_annotations,
        remove_return_annotations=not keep_annotations,
        remove_argument_annotations=not keep_annotations,
        # Dataclasses are made of these.
        remove_class_attribute_annotations=False,
    )
    source = file.read_text(encoding="utf-8")
    if keep_annotations:
        source = _without_annotations_but_of(file.stem, source)
    text = python_minifier.minify(
        source,
        remove_annotations=annotations,
        remove_literal_statements=True,
        hoist_literals=False,
        rename_globals=False,
    )
    tree = ast.parse(text)
    if not keep_annotations:
        _drop_field_types(tree)
    _drop_unused_imports(tree)
    return python_minifier.unparse(tree)


def _without_annotations_but_of(function: str, source: str) -> str:
    """Removes the annotations of all functions but one."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name != function:
            node.returns = None
            for argument in (*node.args.args, *node.args.kwonlyargs):
                argument.annotation = None
    return ast.unparse(tree)


def _drop_field_types(tree: ast.Module) -> None:
    """Replaces the types of a class's fields: a dataclass and a NamedTuple want one, whatever it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign):
                    field.annotation = ast.Name("int", ast.Load())


def _drop_unused_imports(tree: ast.Module) -> None:
    """Removes what only annotations used. Imports from our own modules stay: others may import from here."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in list(tree.body):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] not in _KEPT_IMPORTS:
            node.names = [alias for alias in node.names if (alias.asname or alias.name) in used]
            if not node.names:
                tree.body.remove(node)


def _file_of(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec and spec.origin else None
