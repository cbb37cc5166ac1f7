"""The imports between the library's modules, as docs/architecture.md draws them. Sources are parsed, never imported."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
NAMESPACE = "kfp_distributed."

ROOMS = {
    "cli": {"pipelines", "deploy", "components", "reports", "library", "trainers", "storage", "processes"},
    "pipelines": {"components", "reports", "library", "trainers", "storage", "processes"},
    "components": {"reports", "library", "trainers", "storage", "processes"},
    "deploy": set(),
    "reports": set(),
    "library": set(),
    "trainers": {"storage", "processes"},
    "storage": {"processes"},
    "processes": set(),
}
"""The rooms, and the rooms below each of them, which it may import."""

SHARED_BY_STEPS = ("components.artifacts", "components.startup_remarks")
"""Modules beside the steps that several of them import."""

TRAIN = "components.train"
TRAIN_LAYERS = (
    (
        "deadline",
        "durations",
        "failures",
        "job",
        "kinds",
        "mpirun",
        "signals",
        "specification",
        "topology",
    ),
    ("manifests",),
    ("runners",),
    ("identity", "launch", "resume", "staging", "status"),
    ("component", "failed_report", "report", "step"),
)
"""The modules and packages of components/train. Each imports its own layer and those before it."""

RUNNERS = f"{TRAIN}.runners"
RUNNERS_LAYERS = (("lines", "protocol"), ("kubernetes", "local"), ("choose",))

TRAINERS_LAYERS = (
    ("signature", "requirements", "program", "authoring"),
    ("runtime",),
    (
        "divergence",
        "evaluator",
        "keras_classifier",
        "keras_fit",
        "keras_horovod",
        "keras_model",
        "sync",
        "torch_classifier",
        "torch_fit",
        "torch_horovod",
        "torch_network",
    ),
)
"""What a train_specification says, what runs in every replica, and the trainers with what users call from theirs."""

OPTIONAL_PACKAGES = {
    "horovod",
    "kubernetes",
    "onnx",
    "onnxruntime",
    "packaging",
    "PIL",
    "pyarrow",
    "tensorflow",
    "tf_keras",
    "torch",
    "yaml",
}
"""Packages that take seconds to import, or that not every step or replica has. Functions may import them."""

LATE_IMPORTS = {
    "components.evaluate.component": "kfp reads the signature where pipelines are written, without the step's packages",
    "components.export_model.component": "the same",
    "components.prepare_data.component": "the same",
    "components.train.component": "the same",
    "library.bootstrap": "the template that stands in compiled steps tries whether the library is installed",
}
"""Modules that import the library's own modules inside functions, and why."""


class Import(NamedTuple):
    """An import statement's module.

    Attributes:
        line: Number of its line.
        module: A module of ours without `kfp_distributed.`, such as "storage.uri", or the name of another package.
        is_ours: Whether it is ours.
        in_function: Whether it is inside a function.
    """

    line: int
    module: str
    is_ours: bool
    in_function: bool


@cache
def library() -> Mapping[str, tuple[Import, ...]]:
    """The imports of each module of the library, by names such as "storage.uri"."""
    files = {}
    for room in ROOMS:
        for file in (ROOT / room).rglob("*.py"):
            parts = file.relative_to(ROOT).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return {module: tuple(read_imports(file.read_text(), files)) for module, file in sorted(files.items())}


def read_imports(source: str, modules: Mapping[str, object]) -> Iterator[Import]:
    """Yields what a source imports, also for type checkers alone. `modules` are the names of ours."""

    def visit(node: ast.AST, in_function: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            names = []
            if isinstance(child, ast.Import):
                names = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom):
                assert not child.level, f"line {child.lineno}: a relative import"
                package = str(child.module)
                attributes = [f"{package}.{alias.name}" for alias in child.names]
                names = [name if name.removeprefix(NAMESPACE) in modules else package for name in attributes]
            for name in dict.fromkeys(names):
                is_ours = name.startswith(NAMESPACE)
                yield Import(child.lineno, name.removeprefix(NAMESPACE), is_ours, in_function)
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from visit(child, in_function or is_function)

    return visit(ast.parse(source), False)


def own_imports() -> Iterator[tuple[str, Import]]:
    """All imports of our modules by our modules."""
    for module, imports in library().items():
        yield from ((module, statement) for statement in imports if statement.is_ours)


def find_circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Returns the nodes of a circle of a graph, the first one also as the last; [] if there is none."""
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        circle = next(filter(None, (walk(target, [*path, node]) for target in sorted(graph.get(node, ())))), [])
        done.add(node)
        return circle

    return next(filter(None, (walk(node, []) for node in graph)), [])


def layer_of(module: str, package: str, layers: tuple[tuple[str, ...], ...]) -> int | None:
    """Number of the layer of a module of a package; None for the package itself and modules elsewhere."""
    if not module.startswith(f"{package}."):
        return None
    name = module.removeprefix(f"{package}.").split(".")[0]
    numbers = [number for number, names in enumerate(layers) if name in names]
    assert numbers, f"{module} stands in no layer of tests/test_architecture.py"
    return numbers[0]


def test_rooms_know_only_the_rooms_below_them():
    def room(module):
        return module.partition(".")[0]

    violations = [
        f"{module}:{statement.line} imports {statement.module}"
        for module, statement in own_imports()
        if room(statement.module) not in ROOMS[room(module)] | {room(module)}
    ]
    assert violations == []


def test_each_step_is_a_package_that_no_other_step_imports():
    steps = ("evaluate", "export_model", "prepare_data", "train")

    def step(module):
        return next((name for name in steps if f"{module}.".startswith(f"components.{name}.")), "")

    violations = [
        f"{module}:{statement.line} imports {statement.module}"
        for module, statement in own_imports()
        if step(module)
        and statement.module.startswith("components")
        and step(statement.module) != step(module)
        and statement.module not in SHARED_BY_STEPS
    ]
    assert violations == []


@pytest.mark.parametrize(
    ("package", "layers"), [(TRAIN, TRAIN_LAYERS), (RUNNERS, RUNNERS_LAYERS), ("trainers", TRAINERS_LAYERS)]
)
def test_each_layer_knows_only_the_layers_below_it(package, layers):
    violations = []
    for module, statement in own_imports():
        own, target = layer_of(module, package, layers), layer_of(statement.module, package, layers)
        if own is not None and target is not None and target > own:
            violations.append(f"{module}:{statement.line} imports {statement.module}")
    assert violations == []


def test_the_runners_do_not_know_each_other():
    runners = {f"{RUNNERS}.kubernetes.", f"{RUNNERS}.local."}
    violations = [
        f"{module}:{statement.line} imports {statement.module}"
        for module, statement in own_imports()
        for runner in runners
        if module.startswith(runner) and any(statement.module.startswith(other) for other in runners - {runner})
    ]
    assert violations == []


def test_modules_import_each_other_in_no_circle():
    graph: dict[str, set[str]] = {module: set() for module in library()}
    for module, statement in own_imports():
        graph[module].add(statement.module)
    assert find_circle(graph) == []


def test_functions_import_nothing_but_optional_packages():
    late = {
        (module, statement.module)
        for module, imports in library().items()
        for statement in imports
        if statement.in_function and statement.module.partition(".")[0] not in OPTIONAL_PACKAGES
    }
    assert {module for module, target in late if target in library()} == {*LATE_IMPORTS}
    assert [(module, target) for module, target in late if target not in library()] == []


SAMPLE = """
import json
from typing import TYPE_CHECKING
from kfp_distributed.storage import uri, Store
if TYPE_CHECKING:
    from kfp_distributed.cli.checks import Refusal
def load():
    import torch.nn
    with open("file"):
        from kfp_distributed.storage.uri import parse_uri
"""


def test_every_kind_of_import_is_read():
    assert list(read_imports(SAMPLE, {"storage": 0, "storage.uri": 0, "cli.checks": 0})) == [
        Import(2, "json", False, False),
        Import(3, "typing", False, False),
        Import(4, "storage.uri", True, False),
        Import(4, "storage", True, False),
        Import(6, "cli.checks", True, False),
        Import(8, "torch.nn", False, True),
        Import(10, "storage.uri", True, True),
    ]


@pytest.mark.parametrize(
    ("graph", "circle"),
    [
        ({"a": {"b", "c"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"d", "b"}, "d": set()}, ["b", "c", "b"]),
        ({"a": {"a"}}, ["a", "a"]),
    ],
)
def test_a_circle_is_found(graph, circle):
    assert find_circle(graph) == circle
