"""The tables of tests/README.md name tests that exist, and lose no property."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
README = (TESTS / "README.md").read_text(encoding="utf-8")

PROPERTIES = 96
"""Number of rows of the tables of properties. Increase it when you add a row, and never decrease it."""

NAMED_TEST = re.compile(r"`([^`:]+\.py)::(\w+)(\[[^`]+\])?`")


@cache
def functions(file: str) -> dict[str, ast.FunctionDef]:
    """Return the functions of a file in tests/ by name. A file that does not exist has none."""
    if not (TESTS / file).is_file():
        return {}
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def missing_tests(text: str) -> list[str]:
    """Return the tests that a text names and that do not exist. Of a case, only the parametrization is checked."""
    missing = []
    for file, name, case in NAMED_TEST.findall(text):
        function = functions(file).get(name)
        if function is None or (case and not function.decorator_list):
            missing.append(f"{file}::{name}{case}")
    return missing


def properties(text: str) -> list[list[str]]:
    """Return the cells of each row of the tables below the heading "What proves what"."""
    section = text.partition("\n## What proves what\n")[2]
    tables = [part.splitlines() for part in section.split("\n\n") if part.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for table in tables for row in table[2:]]


def test_each_named_test_exists():
    assert missing_tests(README) == []


def test_each_named_case_exists(request):
    """Checked for the functions that this run has collected, unless it leaves out some of their cases."""
    if "takes" in request.config.option.markexpr:
        pytest.skip("some cases are left out")
    cases = defaultdict(set)
    for item in request.session.items:
        cases[f"{item.path.relative_to(TESTS)}::{item.originalname}"].add(item.name)
    missing = [
        f"{file}::{name}{case}"
        for file, name, case in NAMED_TEST.findall(README)
        if (known := cases.get(f"{file}::{name}")) and f"{name}{case}" not in known and case
    ]
    assert missing == []


def test_no_property_was_deleted():
    assert len(properties(README)) >= PROPERTIES


def test_each_cell_names_one_test_or_says_why_it_needs_none():
    wrong = [
        cell
        for _, *cells in properties(README)
        for cell in cells
        if not cell or cell.count("::") > 1 or ("::" in cell and not NAMED_TEST.fullmatch(cell))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "named",
    [
        "test_absent.py::test_each_named_test_exists",
        "test_proofs.py::test_that_does_not_exist",
        "test_proofs.py::properties_of_nobody",
        "test_proofs.py::test_each_named_test_exists[case]",
    ],
)
def test_a_wrong_name_is_found(named):
    assert missing_tests(f"| property | `{named}` |") == [named]
