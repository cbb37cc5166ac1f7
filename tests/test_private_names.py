"""Check that tests use public names of the library and of each other. Sources are parsed, not imported."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

PUBLIC_PROTOCOLS = {
    "_asdict",  # The documented methods and fields of a NamedTuple.
    "_fields",
    "_make",
    "_replace",
    "_exit",  # os._exit
    "_repr_mimebundle_",  # IPython's method for a rich display.
}
"""Names with an underscore that others have published as part of their interface."""


OF_PYTEST = "collection.py"
"""The one file that may use private names: pytest has no public function that fills its cache."""


def private_names(source: str) -> Iterator[str]:
    """Yield the private names that a test imports, reads from an object other than its own, or replaces."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names = [part for alias in node.names for part in (*(node.module or "").split("."), alias.name)]
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            names = [] if is_own else [node.attr]
        elif isinstance(node, ast.Call) and _called(node) in ("setattr", "delattr", "getattr", "object"):
            texts = [text.value for text in node.args if isinstance(text, ast.Constant) and isinstance(text.value, str)]
            names = [part for text in texts for part in text.split(".")]
        else:
            continue
        yield from (name for name in names if _is_private(name))


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC_PROTOCOLS


def test_tests_use_public_names():
    used = {
        f"{file.relative_to(TESTS)}: {name}"
        for file in TESTS.rglob("*.py")
        if file != TESTS / OF_PYTEST
        for name in private_names(file.read_text("utf-8"))
    }
    assert used == set(), "ask a public function, or publish the name with a docstring"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from library.module import _function", ["_function"]),
        ("from library._module import function", ["_module"]),
        ("import library._module", ["_module"]),
        ("runner._watcher.close()", ["_watcher"]),
        ("super()._send()", ["_send"]),
        ('monkeypatch.setattr(module, "_SECONDS", 1)', ["_SECONDS"]),
        ('monkeypatch.setattr("library.module._SECONDS", 1)', ["_SECONDS"]),
        ('getattr(module, "_function")()', ["_function"]),
        ('patch.object(module, "_function")', ["_function"]),
        ("self._own, cls._own, entry._replace(a=1), module.__path__", []),
        ('monkeypatch.setattr(package, "__path__", [])', []),
        ("_own_function()", []),
    ],
)
def test_private_names_of_a_source(source, names):
    assert list(private_names(source)) == names
