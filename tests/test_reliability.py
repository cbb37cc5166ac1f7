"""docs/reliability.md names tests that are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_test_that_is_named_is_there():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "reliability.md").read_text()))
    sources = "\n".join(each.read_text() for each in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 30
    assert named - set(re.findall(r"^def (test_\w+)\(", sources, re.MULTILINE)) == set()
