"""Tests of other people's libraries are skipped if nothing has changed since they passed on this machine.

The mark `of_libraries` names such tests, or with `pytestmark` a file. When all marked tests of a file have passed in
one process, a record is written under a hash of all that decides their results. Without a record they run.
"""

import ast
import contextlib
import hashlib
import importlib.util
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

UNCHANGED = "unchanged since they passed; --all-libraries runs them"
KEPT = 100
"""Number of records that are kept: those that were used last."""

_CACHE = "TESTS_CACHE_FOLDER"  # Set by tests/environments.py.
_LIBRARY = "kfp_distributed"
# They use the library to find environments and to prepare tests. What a fixture runs is to be named in the mark.
_NOT_UNDER_TEST = ("conftest.py", "environments.py")


def pytest_addoption(parser):
    parser.addoption("--all-libraries", action="store_true", help="run tests of libraries even if nothing has changed")


def pytest_configure(config):
    # Of Pythons that the user names, nobody knows what is installed.
    named = any(name.startswith("TESTS_") and name.endswith("_PYTHON") for name in os.environ)
    if _CACHE in os.environ and not named:
        config.pluginmanager.register(_Records(config, Path(os.environ[_CACHE]) / "kfp-distributed"))


def pytest_terminal_summary(terminalreporter):
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", ())]
    if count := sum(UNCHANGED in reason for reason in reasons):
        terminalreporter.write_line(f"{count} tests of libraries were skipped: {UNCHANGED}.")


class _Records:
    def __init__(self, config, cache_folder):
        self.root, self.cache_folder, self.folder = config.rootpath, cache_folder, cache_folder / "library-tests"
        named = [argument.partition("::") for argument in config.args]
        self.run_all = config.getoption("--all-libraries")
        self.named = {(config.invocation_params.dir / path).resolve() for path, _, _ in named}
        # --lf collects a part of a file, as the name of a test does.
        self.whole = not any(test for _, _, test in named) and not config.getoption("lf", False)
        self.tests, self.paths, self.records = {}, {}, {}
        self.passed, self.failed = set(), set()

    @pytest.hookimpl(tryfirst=True)  # Before -k and -m remove tests, because then not all of the file run.
    def pytest_collection_modifyitems(self, items):
        marked = [item for item in items if item.get_closest_marker("of_libraries")]
        for item in marked:
            self.tests.setdefault(item.path, set()).add(item.nodeid)
            paths = [path for mark in item.iter_markers("of_libraries") for path in mark.args]
            self.paths.setdefault(item.path, set()).update(paths)
        self.records = {file: self.of(file) for file in self.tests}
        for item in marked:
            if not self.run_all and item.path not in self.named and self.records[item.path].exists():
                with contextlib.suppress(OSError):
                    self.records[item.path].touch()
                item.add_marker(pytest.mark.skip(reason=UNCHANGED))

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.passed and report.when == "call":
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self):
        for file, tests in self.tests.items():
            # If a source has changed meanwhile, nobody knows which of its contents has passed.
            if self.whole and tests <= self.passed - self.failed and self.of(file) == self.records[file]:
                with contextlib.suppress(OSError):
                    self.folder.mkdir(parents=True, exist_ok=True)
                    self.records[file].write_text(f"{file.name}\n", encoding="utf-8")
                    for old in sorted(self.folder.iterdir(), key=os.path.getmtime, reverse=True)[KEPT:]:
                        old.unlink(missing_ok=True)

    def of(self, file):
        return self.folder / record_name(file, self.paths[file], self.root, self.cache_folder)


def record_name(file: Path, paths: Iterable[str], root: Path, cache_folder: Path) -> str:
    """Return a hash of all that decides the results of a test file.

    These are the file, the conftest.py of its folders, the paths of its mark, all modules of tests/ and of the library
    that these import (also in programs inside strings), the pins, and what is installed.
    """
    named = [root / path for path in paths]
    if missing := [str(path) for path in named if not path.exists()]:
        raise pytest.UsageError(f"of_libraries in {file} names {', '.join(missing)}, which does not exist")
    fixtures = [folder / "conftest.py" for folder in file.parents if folder.is_relative_to(root)]
    sources: set[Path] = set()
    _add_with_imports([file, *fixtures, *named, *chain.from_iterable(map(_files_of, named))], root, sources)
    pins = [root / "pyproject.toml", root / "images" / "environment.py", *root.glob("images/*/requirements.txt")]
    contents = {str(path.relative_to(root)): _hash(path) for path in [*sources, *pins] if path.is_file()}
    # The Python of a worktree may be that of another one, and import the library from there.
    library = Path(importlib.util.find_spec(f"{_LIBRARY}.library").origin)
    place = "here" if library.is_relative_to(root) else str(library)
    ingredients = repr((place, sorted(contents.items()), installed(cache_folder)))
    return hashlib.sha256(ingredients.encode()).hexdigest()


def _add_with_imports(files: Iterable[Path], root: Path, found: set[Path]) -> None:
    """Add files and all that they may import. Some of what is added does not exist."""
    for file in files:
        if file not in found:
            found.add(file)
            if file.suffix == ".py" and file.is_file():
                source = file.read_text(encoding="utf-8")
                modules, folders = _modules(source, root, file.name in _NOT_UNDER_TEST)
                _add_with_imports(modules, root, found)
                # The programs of a package of tests are started, not imported.
                for folder in folders:
                    if (folder / "__init__.py").is_file():
                        _add_with_imports(_files_of(folder), root, found)


@cache  # Most files of the library are read for each file of tests.
def _modules(source: str, root: Path, of_tests_only: bool) -> tuple[frozenset[Path], frozenset[Path]]:
    """Return the files that a source may import, and the folders of tests/ that it imports if they are packages."""
    modules, folders = set(), set()
    for name in set(_imported(ast.parse(source))):
        library, *parts = name.split(".")
        if library != _LIBRARY:
            parts = [library, *parts]
            folders.add(root / "tests" / library)
        elif of_tests_only:
            continue
        folder = root if library == _LIBRARY else root / "tests"
        for count in range(len(parts)):
            module = folder.joinpath(*parts[: count + 1])
            modules |= {module.with_suffix(".py"), module / "__init__.py"}
    return frozenset(modules), frozenset(folders)


def _files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if "__pycache__" not in path.parts]


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "import " in node.value:
            with contextlib.suppress(SyntaxError):
                yield from _imported(ast.parse(node.value))


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def installed(cache_folder: Path) -> tuple[object, ...]:
    """Return the versions of this Python and its packages, those of the tests' environments, and Debian's packages."""
    environments = sorted(path for path in cache_folder.glob("*") if path.is_symlink())
    dpkg = Path("/var/lib/dpkg/status")
    return (
        (sys.version, platform.machine(), sorted(set(_distributions(sys.path)))),
        [(path.name, path.resolve().name, _environment(path)) for path in environments],
        dpkg.is_file() and _hash(dpkg),
    )


def _environment(folder: Path) -> list[object]:
    """Return when an environment was created, and the packages in its site-packages, which pip may change later."""
    created = [file.stat().st_mtime_ns for file in folder.glob("complete")]
    return [*created, *sorted(_distributions(folder.glob("lib/python*/site-packages")))]


def _distributions(folders: Iterable[str | Path]) -> Iterator[str]:
    """Return the folders of metadata, whose names have the versions. To read the metadata takes a second."""
    return (path.name for folder in folders for path in Path(folder).glob("*-info"))
