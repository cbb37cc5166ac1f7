"""Check the imports between the modules of the library. Sources are parsed, not imported."""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
NAMESPACE = "kfp_distributed."

IMPORTABLE_PACKAGES = {
    "cli": {
        "pipelines",
        "deploy",
        "components",
        "reports",
        "library",
        "trainers",
        "storage",
        "cluster_api",
        "processes",
    },
    "pipelines": {"components", "reports", "library", "trainers", "storage", "cluster_api", "processes"},
    "components": {"reports", "library", "trainers", "storage", "cluster_api", "processes"},
    "deploy": set(),
    "reports": set(),
    "library": set(),
    "trainers": {"storage", "cluster_api", "processes"},
    "storage": {"cluster_api", "processes"},
    "cluster_api": set(),
    "processes": set(),
}
"""The packages of the library, each with the packages that it may import."""

SHARED_BY_STEPS = (
    "components.kfp_interface.artifacts",
    "components.kfp_interface.step_packages",
    "components.kfp_interface.delivery",
)
"""Modules that steps import of what makes KFP components of them."""

JOB_ENGINE = (
    "components.train.describe",
    "components.train.recorded_job",
    "components.train.run",
    "components.train.step",
    "components.train.tell.experiment_tracker",
    "components.train.tell.log_format",
    "components.train.tell.step_log",
)
"""What starts the replicas of a job and follows them. The workers of steps and `evaluate_language_model` use it, and
`deploy_model` watches its InferenceService with it."""

SHARED_ROOMS = (
    "components.acceptance.",
    "components.external_services.",
    "components.summaries.",
    "components.model_formats.",
    "components.model_versions.",
    "components.worker_pool.",
)
"""Packages beside the steps that several of them import."""

ROW_READERS = (
    "csv_format",
    "preparation_options",
    "read",
    "sources.chunks",
    "sources.disk_errors",
    "sources.download_limit",
    "sources.fetch",
    "sources.folder_splits",
    "sources.read_rows",
    "sources.source_files",
    "sources.stored_files",
    "columns.column_names",
    "columns.look_alikes",
    "columns.python_values",
    "columns.source",
    "columns.spelled_values",
    "tables.open_source",
)
"""Modules of `prepare_data` that read sources, and explain a full disk. `predict` uses them, so that a model gets each
row of a table as it would get it from the dataset that `prepare_data` makes of the table."""

COMPONENTS_ROOMS = (
    ("acceptance",),
    ("external_services",),
    ("summaries",),
    ("model_formats",),
    ("model_versions",),
    ("train",),
    ("kfp_interface",),
    ("worker_pool",),
    (
        "deploy_model",
        "evaluate",
        "evaluate_language_model",
        "export_model",
        "fingerprint_source",
        "import_model",
        "model_server",
        "predict",
        "prepare_data",
        "tune",
    ),
    ("step_components",),
)
"""The rooms of components/ and its steps, and what makes the ten components. Each imports only itself and those
before it."""

TRAIN = "components.train"
TRAIN_ROOMS = (("describe",), ("run",), ("tell",), ("recorded_job",), ("component", "step"))
"""The rooms of components/train in the order in which data goes through them, and the modules that connect them. A
module imports only from its own room and the rooms before it."""

PREPARE_DATA = "components.prepare_data"
SETTINGS = ("csv_format", "preparation_options", "split_parameter")
"""Modules of `prepare_data` that all its rooms may import."""

DOWNWARDS = {(f"{PREPARE_DATA}.preparation_options", f"{PREPARE_DATA}.columns.dates")}
"""The only import of a room by the settings: forms of dates are checked by the module that reads them."""

PREPARE_DATA_ROOMS = (
    ("sources",),
    ("columns",),
    ("tables",),
    ("report",),
    ("pieces",),
    ("scan",),
    ("split",),
    ("writing",),
    ("prepare", "read"),
    ("preparation_pods",),
    ("component", "step"),
)
"""The same of components/prepare_data, and the modules that connect them."""

EVALUATE = "components.evaluate"
EVALUATE_ROOMS = (
    ("scoring",),
    ("pages",),
    ("classification", "model_function", "regression", "weights"),
    ("evaluation",),
    ("component", "step"),
)
"""The same of components/evaluate: what scores and pages are, and the modules that ask the model for them."""

PREDICT = "components.predict"
PREDICT_ROOMS = (
    ("prediction_request",),
    ("asked_model",),
    ("reading",),
    ("answering",),
    ("prediction",),
    ("prediction_pods",),
    ("component", "step"),
)
"""The same of components/predict: the checked parameters, the rooms, and the modules that connect them."""

MOST_MODULES = 16
"""So many modules may be in one folder."""

LONGEST_CHAIN = 19
"""So many modules may import each other one after the other."""

CLI_ROOMS = (
    ("options", "rendered_objects", "text_table"),
    ("setup",),
    ("cluster_checks",),
    ("pipeline_store",),
    ("jobs",),
    ("survey",),
    ("commands",),
    ("main",),
)
"""The rooms of the command line, and the modules that read options, the store and the cluster for them."""

IMPURE_PACKAGES = {
    *("asyncio", "kubernetes", "multiprocessing", "os", "random", "select", "shutil", "signal", "socket", "subprocess"),
    *("sys", "tempfile", "threading", "time", "urllib", "urllib3", "uuid"),
}
IMPURE_MODULES = {
    "cluster_api.client",
    "cluster_api.configuration",
    "cluster_api.reader",
    "storage.opener",
    "processes",
}
"""What components/train/describe must not import, because it reads no variable and no clock and asks no server."""

RUN = f"{TRAIN}.run"
RUN_LAYERS = (
    ("deadline", "facts", "signals", "stored_metrics"),
    ("shown_progress",),
    ("conclusions",),
    ("training_request",),
    ("runners",),
    ("identity", "launch"),
    ("staging",),
)
"""Facts, what is shown of them and concluded from them, what is asked for, the runners that yield facts, and the flow
over them."""

RUNNERS = f"{RUN}.runners"
RUNNERS_LAYERS = (("lines", "newest_checkpoint", "protocol"), ("kubernetes", "local"), ("runner_choice",))

KUBERNETES = f"{RUNNERS}.kubernetes"
KUBERNETES_ROOMS = (
    ("connect",),
    ("cluster_records",),
    ("create",),
    ("logs",),
    ("watch",),
    ("judge",),
    ("follow", "heartbeat", "progress_patches", "runner"),
)
"""The rooms of the runner for clusters, in the order in which a job meets them, and the modules that connect them."""

TRAINERS_LAYERS = (
    ("programs",),
    ("runtime",),
    ("language_rows", "logged_values", "onnx_inputs", "resumed_network", "rows", "sync"),
    ("epochs",),
    ("keras_training", "torch_training"),
    (
        "keras_classifier",
        "keras_horovod",
        "torch_checkpoint",
        "torch_classifier",
        "torch_export",
        "torch_horovod",
        "torch_rows",
    ),
    ("hugging_face", "language_training"),
    ("language_scoring",),
    ("language_evaluation", "language_model"),
)
"""The content of a train_specification, the runtime of every replica, and the trainers with their public modules."""

STORAGE_ROOMS = (
    (
        "answers",
        "dataset",
        "errors",
        "files",
        "model_format",
        "parallel",
        "tensor_specs",
        "uri",
    ),
    ("alignment", "kubeflow", "model", "provenance", "store"),
    ("folder", "object_stores", "shard_reader"),
    ("opener",),
    ("shards",),
)
"""The rooms of storage, and its modules: what is stored, where, the stores, and what opens them."""

RUNTIME = "trainers.runtime"
RUNTIME_ROOMS = (
    ("job_description",),
    ("workarounds",),
    ("ranks",),
    ("monitoring",),
    ("data_loading",),
    ("checkpoints",),
    ("outputs",),
    ("lifecycle",),
    ("entry", "horovodrun", "launcher", "torchrun", "unless_trained"),
)
"""What a step tells the replicas, the rooms of trainers/runtime, and the programs that `python -m` starts."""

OPTIONAL_PACKAGES = {
    "IPython",
    "dask",
    "distributed",
    "fsspec",
    "google",
    "h5py",
    "horovod",
    "huggingface_hub",
    "jinja2",
    "keras",
    "kubernetes",
    "lm_eval",
    "onnx",
    "onnxruntime",
    "packaging",
    "PIL",
    "pyarrow",
    "sklearn",
    "tensorboardX",
    "tensorflow",
    "tf_keras",
    "torch",
    "yaml",
}
"""Packages that take seconds to import, or that some steps or replicas lack. Functions may import them."""

LATE_IMPORTS = {
    "cli.commands.serve": "PyTorch and transformers are needed only where a language model is served",
    "components.evaluate.component": "kfp reads the signature where pipelines are written, without the step's packages",
    "components.deploy_model.component": "the same",
    "components.evaluate_language_model.component": "the same",
    "components.export_model.component": "the same",
    "components.export_model.step": "the client of MLflow is needed only where MLFLOW_TRACKING_URI is set",
    "components.fingerprint_source.component": "the same",
    "components.import_model.component": "the same",
    "components.predict.component": "the same",
    "components.prepare_data.component": "the same",
    "components.train.component": "the same",
    "components.tune.component": "the same",
    "components.train.tell.choose_tracker": "the client of MLflow is needed only where MLFLOW_TRACKING_URI is set",
    "library.bootstrap": "the template of compiled steps checks whether the library is installed",
    "trainers.torch_checkpoint": "PyTorch before 2.3, which has no torch.distributed.checkpoint, gets a clear error",
}
"""Modules that import modules of the library inside functions, and the reason."""


class Import(NamedTuple):
    """An imported module.

    Attributes:
        line: Line number of the import statement.
        module: A module of this library without `kfp_distributed.`, such as "storage.uri", or the name of another
            package.
        is_ours: Whether the module belongs to this library.
        in_function: Whether the statement is inside a function.
    """

    line: int
    module: str
    is_ours: bool
    in_function: bool


@cache
def source_files() -> Mapping[str, Path]:
    """Return the file of each module of the library, by names such as "storage.uri"."""
    files = {}
    for package in IMPORTABLE_PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            parts = file.relative_to(ROOT).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return files


@cache
def library() -> Mapping[str, tuple[Import, ...]]:
    """Return the imports of each module of the library."""
    files = source_files()
    return {module: tuple(read_imports(file.read_text(), files)) for module, file in sorted(files.items())}


def read_imports(source: str, modules: Mapping[str, object]) -> Iterator[Import]:
    """Yield the imports of a source, including those for type checkers. `modules` has the names of our modules."""

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
    """Yield all imports between modules of this library."""
    for module, imports in library().items():
        yield from ((module, statement) for statement in imports if statement.is_ours)


def find_cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the nodes of a cycle of a graph, with the first node also as the last. [] if there is no cycle."""
    visited: set[str] = set()

    def walk(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in visited:
            return []
        cycle = next(filter(None, (walk(target, [*path, node]) for target in sorted(graph.get(node, ())))), [])
        visited.add(node)
        return cycle

    return next(filter(None, (walk(node, []) for node in graph)), [])


def layer_of(module: str, package: str, layers: tuple[tuple[str, ...], ...]) -> int | None:
    """Return the layer number of a module of a package. None for the package itself and for other modules."""
    if not module.startswith(f"{package}."):
        return None
    name = module.removeprefix(f"{package}.").split(".")[0]
    numbers = [number for number, names in enumerate(layers) if name in names]
    assert numbers, f"{module} has no layer, add it to tests/test_architecture.py"
    return numbers[0]


def test_packages_import_only_lower_packages():
    def top_package(module):
        return module.partition(".")[0]

    violations = [
        f"{module}:{statement.line} imports {statement.module}"
        for module, statement in own_imports()
        if top_package(statement.module) not in IMPORTABLE_PACKAGES[top_package(module)] | {top_package(module)}
    ]
    assert violations == []


def test_each_step_is_a_package_that_no_other_step_imports():
    steps = (
        "deploy_model",
        "evaluate",
        "export_model",
        "fingerprint_source",
        "import_model",
        "predict",
        "prepare_data",
        "train",
    )

    def step(module):
        return next((name for name in steps if f"{module}.".startswith(f"components.{name}.")), "")

    violations = [
        f"{module}:{statement.line} imports {statement.module}"
        for module, statement in own_imports()
        if step(module)
        and statement.module.startswith("components")
        and step(statement.module) != step(module)
        and statement.module not in SHARED_BY_STEPS
        and not statement.module.startswith(SHARED_ROOMS)
        and not (
            step(module) in ("deploy_model", "prepare_data", "predict")
            and f"{statement.module}.".startswith(tuple(f"{name}." for name in JOB_ENGINE))
        )
        and not (
            step(module) == "predict"
            and statement.module in {f"components.prepare_data.{name}" for name in ROW_READERS}
        )
    ]
    assert violations == []


@pytest.mark.parametrize(
    ("package", "layers"),
    [
        ("cli", CLI_ROOMS),
        ("components", COMPONENTS_ROOMS),
        (TRAIN, TRAIN_ROOMS),
        (RUN, RUN_LAYERS),
        (RUNNERS, RUNNERS_LAYERS),
        (KUBERNETES, KUBERNETES_ROOMS),
        (EVALUATE, EVALUATE_ROOMS),
        (PREDICT, PREDICT_ROOMS),
        (PREPARE_DATA, (SETTINGS, *PREPARE_DATA_ROOMS)),
        ("trainers", TRAINERS_LAYERS),
        ("storage", STORAGE_ROOMS),
        (RUNTIME, RUNTIME_ROOMS),
    ],
)
def test_layers_import_only_lower_layers(package, layers):
    violations = []
    for module, statement in own_imports():
        own, target = layer_of(module, package, layers), layer_of(statement.module, package, layers)
        if own is not None and target is not None and target > own and (module, statement.module) not in DOWNWARDS:
            violations.append(f"{module}:{statement.line} imports {statement.module}")
    assert violations == []


def test_folders_have_few_modules():
    modules = Counter(
        file.parent.relative_to(ROOT).as_posix() for file in source_files().values() if file.name != "__init__.py"
    )
    assert [folder for folder, count in modules.items() if count > MOST_MODULES] == []


def test_what_describes_a_training_is_pure():
    violations = [
        f"{module}:{statement.line} imports {statement.module}"
        for module, imports in library().items()
        for statement in imports
        if module.startswith(f"{TRAIN}.describe")
        and (
            any(f"{statement.module}.".startswith(f"{name}.") for name in IMPURE_MODULES)
            if statement.is_ours
            else statement.module.partition(".")[0] in IMPURE_PACKAGES
        )
    ]
    assert violations == []


def test_runners_do_not_import_each_other():
    runners = {f"{RUNNERS}.kubernetes.", f"{RUNNERS}.local."}
    violations = [
        f"{module}:{statement.line} imports {statement.module}"
        for module, statement in own_imports()
        for runner in runners
        if module.startswith(runner) and any(statement.module.startswith(other) for other in runners - {runner})
    ]
    assert violations == []


def test_imports_have_no_cycle():
    graph: dict[str, set[str]] = {module: set() for module in library()}
    for module, statement in own_imports():
        graph[module].add(statement.module)
    assert find_cycle(graph) == []


def test_no_chain_of_imports_is_long():
    """A reader who follows the imports of a module is soon at their end. Those in functions are made when one runs."""

    @cache
    def chain(module):
        imported = {each.module for each in library()[module] if each.is_ours and not each.in_function}
        return (module, *max((chain(other) for other in sorted(imported & library().keys())), key=len, default=()))

    longest = max(map(chain, library()), key=len)
    assert len(longest) <= LONGEST_CHAIN, longest


def test_functions_import_only_optional_packages():
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
    from kfp_distributed.cli.cluster_checks.checks import Refusal
def load():
    import torch.nn
    with open("file"):
        from kfp_distributed.storage.uri import parse_uri
"""


def test_read_imports():
    assert list(read_imports(SAMPLE, {"storage": 0, "storage.uri": 0, "cli.cluster_checks.checks": 0})) == [
        Import(2, "json", False, False),
        Import(3, "typing", False, False),
        Import(4, "storage.uri", True, False),
        Import(4, "storage", True, False),
        Import(6, "cli.cluster_checks.checks", True, False),
        Import(8, "torch.nn", False, True),
        Import(10, "storage.uri", True, True),
    ]


@pytest.mark.parametrize(
    ("graph", "cycle"),
    [
        ({"a": {"b", "c"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"d", "b"}, "d": set()}, ["b", "c", "b"]),
        ({"a": {"a"}}, ["a", "a"]),
    ],
)
def test_find_cycle(graph, cycle):
    assert find_cycle(graph) == cycle


PARALLEL = {"__init__", "component", "step", "report", "runner"}
"""Names of modules that several packages have because they do the same for another step or another kind of runner."""


def test_one_name_stands_for_one_thing():
    """A module, a public class or a type alias has a name of its own. Commands are named like what they do."""
    modules: dict[str, list[str]] = {}
    definitions: dict[str, list[str]] = {}
    for module, file in source_files().items():
        name = module.rpartition(".")[2]
        if name not in PARALLEL and not module.startswith("cli.commands."):
            modules.setdefault(name, []).append(module)
        for node in ast.parse(file.read_text()).body:
            names = [node.name] if isinstance(node, ast.ClassDef) else []
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            for defined in names:
                if defined[0].isupper() and not defined.isupper():
                    definitions.setdefault(defined, []).append(module)
    assert {name: places for name, places in (modules | definitions).items() if len(places) > 1} == {}
