"""How a step's code reaches its container: inside the compiled YAML, in an image, or as a package from an index.

Inside the YAML is the default and needs nothing from anybody: a stock Python image runs it. The step then carries
the modules it needs and no others, because Argo keeps some eleven copies of a task's YAML in a Workflow of at most
1 MB. Docstrings and comments stay at home for the same reason; the code itself travels as it is written.
"""

import ast
import base64
import bz2
import importlib.util
import io
import json
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp import dsl

STOCK_IMAGE = "python:3.11"

_NAMESPACE = "kfp_distributed"

# Base 85 takes 1.25 characters a byte, base 64 takes 1.33. The three characters that mean something to KFP, to Argo or
# to a shell are written as three that base 85 leaves unused.
_RISKY, _HARMLESS = "{}$", ",./"

_UNPACK = """\
import base64, bz2, json, pathlib, sys, tempfile
_archive = "{archive}"
_modules = tempfile.TemporaryDirectory(prefix="kfp-distributed-")
_packed = base64.b85decode(_archive.translate(str.maketrans("{harmless}", "{risky}")))
for _name, _text in json.loads(bz2.decompress(_packed)).items():
    _file = pathlib.Path(_modules.name, _name)
    _file.parent.mkdir(parents=True, exist_ok=True)
    _file.write_text(_text, encoding="utf-8")
sys.path.insert(0, _modules.name)
"""


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
    function: Callable[..., Any], *, packages: Sequence[str], delivery: Delivery, started_by_name: Sequence[str] = ()
) -> Any:  # noqa: ANN401  (kfp exports no type for its components)
    """Makes the KFP component of one step.

    Args:
        function: The step's signature and its few lines of body, which import what does the work.
        packages: What pip installs into a stock image before the step starts.
        delivery: Where the step finds our modules.
        started_by_name: Modules to carry beside those that the function's body imports, and what they import in turn.

    Returns:
        A component to call inside a `@dsl.pipeline` function.
    """
    if delivery.image:
        return dsl.component(base_image=delivery.image, install_kfp_package=False)(function)
    if delivery.package:
        return dsl.component(base_image=STOCK_IMAGE, packages_to_install=[delivery.package, *packages])(function)
    component = dsl.component(base_image=STOCK_IMAGE, packages_to_install=list(packages))(function)
    # kfp's own embedded_artifact_path packs owner and time of each file too, so that no two compilations are equal:
    # the committed YAML could not be checked and KFP's cache would never hit.
    command = component.component_spec.implementation.container.command
    body = strip_comments(command[-1])
    archive = pack(read_modules(imported_modules(body), started_by_name))
    command[-1] = _UNPACK.format(archive=archive, harmless=_HARMLESS, risky=_RISKY) + body
    return component


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


def read_modules(names: Sequence[str], started_by_name: Sequence[str] = ()) -> dict[str, str]:
    """Reads modules and all modules of ours that they import, without docstrings, comments and annotations.

    Args:
        names: Full names of the modules to begin with.
        started_by_name: More such modules, which keep their annotations: a trainer's parameters are checked by them.

    Returns:
        Source by path relative to the import root. A package is there as an empty `__init__.py`, unless something
        imports from the package itself.

    Raises:
        ModuleNotFoundError: A name is no module.
    """
    sources: dict[str, str] = {}
    waiting = [*names, *started_by_name]
    while waiting:
        name = waiting.pop()
        file = _file_of(name)
        if file is None:
            raise ModuleNotFoundError(f"{name} is not a module of this installation.")
        path = name.replace(".", "/") + ("/__init__.py" if file.name == "__init__.py" else ".py")
        if sources.get(path):
            continue
        text = file.read_text(encoding="utf-8")
        sources[path] = strip_comments(text, keep_annotations=name in started_by_name)
        waiting += imported_modules(text)
        for package in list(Path(path).parents)[:-2]:
            sources.setdefault(f"{package.as_posix()}/__init__.py", "")
    return dict(sorted(sources.items()))


def pack(sources: Mapping[str, str]) -> str:
    """Packs sources into one line of ASCII, the same line for the same sources."""
    text = json.dumps(sources, ensure_ascii=False, separators=(",", ":"))
    archive = base64.b85encode(bz2.compress(text.encode(), 9)).decode("ascii")
    return archive.translate(str.maketrans(_RISKY, _HARMLESS))


def unpack(archive: str) -> dict[str, str]:
    """Reads what `pack` made."""
    packed = archive.translate(str.maketrans(_HARMLESS, _RISKY))
    sources: dict[str, str] = json.loads(bz2.decompress(base64.b85decode(packed)))
    return sources


def _file_of(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec and spec.origin else None


def strip_comments(source: str, *, keep_annotations: bool = True) -> str:
    """Removes comments, blank lines and the text of docstrings; every other character stays as it is.

    Args:
        source: A module.
        keep_annotations: False removes those of arguments, results and local variables as well; those of classes
            stay, for dataclasses are made of them.
    """
    lines = source.splitlines(keepends=True)
    tree = ast.parse(source)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    cuts = [(token.start, token.end, "") for token in tokens if token.type == tokenize.COMMENT]

    def position(line: int, column: int) -> tuple[int, int]:
        # ast counts columns in bytes of UTF-8, tokenize in characters.
        return line, len(lines[line - 1].encode()[:column].decode())

    docstrings = {id(text) for text in map(_docstring, ast.walk(tree)) if text}
    kept: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Constant, ast.JoinedStr)):
            last, end = _end(node)
            if id(node) in docstrings:
                cuts.append((position(node.lineno, node.col_offset), position(last, end), '""'))
            elif last > node.lineno:
                kept.update(range(node.lineno, last + 1))
    if not keep_annotations:
        signs = [token for token in tokens if token.type == tokenize.OP]
        for start, end in _annotations(tree):
            cuts.append((position(*start), position(*end), ""))
        for start in _results(tree):
            arrow = max(token.start for token in signs if token.string == "->" and token.start <= position(*start))
            colon = min(token.start for token in signs if token.string == ":" and token.start >= position(*start))
            cuts.append((arrow, colon, ""))
    for (first, start), (last, end), text in sorted(cuts, reverse=True):
        joined = lines[first - 1][:start] + text + lines[last - 1][end:]
        lines[first - 1 : last] = [joined, *[""] * (last - first)]
    return "".join(line if number in kept else _trimmed(line) for number, line in enumerate(lines, start=1))


def _annotations(tree: ast.Module) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Where annotations of arguments and local variables begin and end."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation:
            yield (node.lineno, node.col_offset + len(node.arg.encode())), _end(node.annotation)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for inner in _own_statements(node):
                if isinstance(inner, ast.AnnAssign) and inner.value:
                    yield _end(inner.target), _end(inner.annotation)


def _results(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Where annotations of results end, inside brackets that may stand around them."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns:
            yield _end(node.returns)


def _own_statements(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """What stands in a function, but not in a function or class inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def _docstring(node: ast.AST) -> ast.Constant | None:
    if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    first = node.body[0] if node.body else None
    text = first.value if isinstance(first, ast.Expr) else None
    return text if isinstance(text, ast.Constant) and isinstance(text.value, str) else None


def _trimmed(line: str) -> str:
    return line.rstrip() + "\n" if line.strip() else ""
