"""The reference of failures names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_named_test_exists():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "reference" / "failures.md").read_text()))
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 30
    assert named - set(re.findall(r"^ *def (test_\w+)\(", sources, re.MULTILINE)) == set()
