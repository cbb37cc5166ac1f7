"""What a step carries: its modules without comments, the same bytes for the same sources."""

import ast
import importlib.util
from pathlib import Path

import pytest

from kfp_distributed.components.packaging import Delivery, imported_modules, pack, read_modules, strip_comments, unpack

SOURCE = '''"""Module docstring — with an accent: é."""
# A comment.

import os  # why


class A:
    """Only a docstring."""


def f(a: str = "# not a comment") -> str:
    """Docstring
    of two lines, é."""

    text = """kept

    # kept too
    """
    return f"{a}#{text}"  # end
'''

STRIPPED = '''""
import os
class A:
    ""
def f(a: str = "# not a comment") -> str:
    ""
    text = """kept

    # kept too
    """
    return f"{a}#{text}"
'''


def test_comments_and_docstrings_are_removed_and_nothing_else():
    assert strip_comments(SOURCE) == STRIPPED


ANNOTATED = """\
from dataclasses import dataclass
@dataclass
class A:
    é: int = 1
    def f(self, é: dict[str, int], b: "str" = "->", *rest: int, key: str | None = None) -> (
        dict[str, int]
    ):
        total: dict[str, int] = {"é": 1}
        later: int
        def inner(x: int) -> int: return x
        return total
"""

WITHOUT_ANNOTATIONS = """\
from dataclasses import dataclass
@dataclass
class A:
    é: int = 1
    def f(self, é, b = "->", *rest, key = None) :
        total = {"é": 1}
        later: int
        def inner(x) : return x
        return total
"""


def test_annotations_are_removed_but_for_those_that_classes_are_made_of():
    assert strip_comments(ANNOTATED, keep_annotations=False) == WITHOUT_ANNOTATIONS
    assert strip_comments(ANNOTATED) == ANNOTATED


@pytest.mark.parametrize("name", ["kfp_distributed.components.train.launch", "kfp_distributed.trainers.entry"])
def test_what_travels_is_the_same_program(name):
    class Plain(ast.NodeTransformer):
        """Takes away what does not travel: docstrings, and annotations of arguments, results and local variables."""

        def visit_arg(self, node):
            node.annotation = None
            return node

        def visit_FunctionDef(self, node):
            node.returns = None
            for inner in ast.walk(node):
                for field in ("body", "orelse", "finalbody"):
                    if isinstance(getattr(inner, field, None), list) and not isinstance(inner, ast.ClassDef):
                        setattr(inner, field, [self.plain_assignment(each) for each in getattr(inner, field)])
            return self.generic_visit(node)

        def plain_assignment(self, node):
            return (
                ast.Assign([node.target], node.value, lineno=0)
                if isinstance(node, ast.AnnAssign) and node.value
                else node
            )

    def program(source: str) -> str:
        tree = Plain().visit(ast.parse(source))
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
                node.body[0].value.value = ""
        return ast.dump(tree)

    sources = read_modules([name])
    assert len(sources) > 10
    for path, text in sources.items():
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if text:
            original = Path(importlib.util.find_spec(module).origin).read_text(encoding="utf-8")
            assert program(text) == program(original), path


def test_a_step_carries_what_its_modules_import_and_nothing_else():
    paths = list(read_modules(["kfp_distributed.storage.uri"]))
    assert paths == ["kfp_distributed/storage/__init__.py", "kfp_distributed/storage/uri.py"]
    carried = read_modules(["kfp_distributed.components.export_model.export"])
    assert "kfp_distributed/storage/s3.py" in carried
    assert carried["kfp_distributed/components/__init__.py"] == ""
    assert not [path for path in carried if "trainers" in path or path.endswith("component.py")]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os\nfrom pathlib import Path\n", []),
        ("from kfp_distributed.storage.uri import join_uri", ["kfp_distributed.storage.uri"]),
        ("def f():\n    from kfp_distributed.storage import uri", ["kfp_distributed.storage.uri"]),
        ("import kfp_distributed.storage.uri as u", ["kfp_distributed.storage.uri"]),
        ("from kfp_distributed.storage import join_uri", ["kfp_distributed.storage"]),
    ],
)
def test_imports_are_found_wherever_they_stand(source, expected):
    assert imported_modules(source) == expected


def test_an_unknown_module_is_named():
    with pytest.raises(ModuleNotFoundError, match=r"kfp_distributed\.storage\.nothing"):
        read_modules(["kfp_distributed.storage.nothing"])


def test_packing_keeps_every_character_and_uses_none_that_kfp_or_argo_would_read():
    sources = {f"{number}.py": f"x = 'é{number * 7919}'\n" for number in range(500)}
    packed = pack(sources)
    assert unpack(packed) == sources
    assert not set(packed) & set("{}$\\\"' ")


def test_image_and_package_exclude_each_other():
    with pytest.raises(ValueError, match=r"image='i' and package='p' are both given"):
        Delivery(image="i", package="p")
