"""Import paths, plugins and the order of all tests."""

import re
import sys
from pathlib import Path

import hypothesis
import pytest

# Tests import shared modules (tests/environments.py, tests/compiled.py) by name, in any import mode.
sys.path.insert(0, str(Path(__file__).parent))
# The folder of the fake API server.
sys.path.append(str(Path(__file__).parents[1] / "benchmarks" / "stub"))
# The folder of the examples.
sys.path.append(str(Path(__file__).parents[1] / "examples"))

from environments import MISSING, hide_environments, program
from playwright.sync_api import sync_playwright

# By default, an example that takes more than 200 ms fails. On a busy machine any example may.
hypothesis.settings.register_profile("without-deadline", deadline=None)
hypothesis.settings.load_profile("without-deadline")

hide_environments()

# They have a configuration of their own: see tests/gpu/run.py.
collect_ignore = ["gpu"]

# Loaded here so that they are active even if only some of the tests run.
pytest_plugins = ["collection", "process_hygiene", "library_tests", "forked_replicas", "running_tests"]


@pytest.fixture(autouse=True)
def _no_figures(request, monkeypatch):
    """Leave figures out of the pages of all tests but those marked so: they take most of the time of a small step."""
    if request.node.get_closest_marker("figures"):
        return
    from kfp_distributed.reports import figures, page

    for name in ("draw_bars", "draw_heatmap", "draw_histogram", "draw_lines", "draw_timeline"):
        monkeypatch.setattr(figures, name, lambda *_, **__: None)
    monkeypatch.setattr(page, "figure_json", lambda *_: {})


@pytest.fixture(scope="module")
def browser():
    """Return a browser. Only one may run at a time in a process, so it ends with its module."""
    executable = program("chromium")
    with sync_playwright() as playwright:
        # Its own sandbox needs rights that containers and root do not have.
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.hookimpl(trylast=True)  # After pytest has removed the tests that -m deselects.
def pytest_collection_modifyitems(config, items):
    """Start the longest tests first if tests run in parallel, so that all workers end at about the same time."""
    if hasattr(config, "workerinput"):
        items.sort(key=_seconds, reverse=True)


def pytest_terminal_summary(terminalreporter):
    """Say how many tests were skipped because the machine lacks what they need, and which command installs it."""
    reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", ()) if len(report.longrepr) == 3]
    names = [match[1] for reason in reasons if (match := re.match(MISSING, reason))]
    if names:
        terminalreporter.write_line(
            f"{len(names)} tests were skipped, because this machine lacks {', '.join(sorted(set(names)))}. "
            "To run them, run once: make environments"
        )


def _seconds(item: pytest.Item) -> int:
    mark = item.get_closest_marker("takes")
    return mark.args[0] if mark else 0
