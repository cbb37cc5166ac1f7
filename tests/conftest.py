"""Import paths, plugins and the order of all tests."""

import sys
from pathlib import Path

import pytest

# Tests import what they share (tests/environments.py, tests/compiled.py) by name, under any import mode.
sys.path.insert(0, str(Path(__file__).parent))
# The folder of the API server that tests start in place of a real one.
sys.path.append(str(Path(__file__).parents[1] / "benchmarks" / "stub"))
# The folder of the examples.
sys.path.append(str(Path(__file__).parents[1] / "examples"))

# The processes that tests start, also where a part of the tests is run by its path.
pytest_plugins = ["process_hygiene"]


@pytest.hookimpl(trylast=True)  # After pytest has removed the tests that -m deselects.
def pytest_collection_modifyitems(config, items):
    """Starts the longest tests first where tests run side by side, so that no process ends long before another."""
    if hasattr(config, "workerinput"):
        items.sort(key=_seconds, reverse=True)


def _seconds(item: pytest.Item) -> int:
    mark = item.get_closest_marker("takes")
    return mark.args[0] if mark else 0
