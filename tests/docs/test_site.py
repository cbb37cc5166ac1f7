"""The documentation site: it builds, a mistake in a page is reported, and a reader's browser needs no network."""

import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from kfp_distributed.cli.main import main

pytestmark = pytest.mark.takes(39)

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _without_advertisement(monkeypatch):
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Folder with the complete site, as `make docs` builds it in a fresh checkout.

    A process of its own builds it: mkdocstrings also reads from sys.path, which other tests change.
    """
    shutil.rmtree(ROOT / "build" / "api", ignore_errors=True)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    return folder


class Requests(HTMLParser):
    """Collects what a browser fetches for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        fetched = tag == "link" and values.get("rel") in ("stylesheet", "icon", "preconnect", "preload")
        address = values.get("href") if fetched else values.get("src")
        if address:
            self.addresses.append(address)


@pytest.mark.takes(20)
def test_a_browser_fetches_nothing_from_other_hosts(site):
    addresses = {}
    for page in site.rglob("*.html"):
        parser = Requests()
        parser.feed(page.read_text("utf-8"))
        addresses[page.relative_to(site).as_posix()] = parser.addresses
    assert len(addresses) > 40
    assert all(addresses.values())
    remote = re.compile("(https?:)?//")
    assert {(page, url) for page, urls in addresses.items() for url in filter(remote.match, urls)} == set()
    styles = "".join(file.read_text("utf-8") for file in site.rglob("*.css"))
    assert re.findall(r"url\(\W?(?:https?:)?//", styles) == []


def test_the_reference_has_every_command_and_the_public_api(site):
    commands = (site / "reference" / "command-line.html").read_text("utf-8")
    assert [name for name in main.list_commands(None) if f'<h2 id="{name}">' not in commands] == []
    api = (site / "reference" / "python-api.html").read_text("utf-8")
    named = re.findall("^::: (.+)$", (ROOT / "docs" / "reference" / "python-api.md").read_text("utf-8"), re.MULTILINE)
    assert len(named) > 10
    named[named.index("kfp_distributed.components.step_components")] += ".Steps"  # A module without a heading.
    assert [name for name in named if f'id="{name}"' not in api] == []
    assert "<!-- generated" not in api + (site / "reference" / "trainers.html").read_text("utf-8")


@pytest.fixture
def address(site):
    """Address of a web server with the site, as `make docs-serve` starts one."""
    handler = partial(QuietHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Leave requests out of the output of the tests."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_searches_the_site_without_an_error(address, browser, scheme):
    problems: list[str] = []
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("requestfailed", lambda request: problems.append(request.url))
    page.on("request", lambda request: request.url.startswith(address) or problems.append(request.url))
    page.goto(f"{address}/reference/metrics.html")
    page.keyboard.press("f")  # The shortcut of the search.
    page.keyboard.type("restart_limit")
    page.locator(".md-search-result__item mark", has_text="restart_limit").first.wait_for()
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    context.close()
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    assert problems == []


def build_page(text: str, folder: Path) -> None:
    """Build a site with one page, page.md, and the settings of ours."""
    (folder / "docs").mkdir()
    (folder / "docs" / "page.md").write_text(f"# Title\n\n{text}\n")
    config = load_config(
        str(ROOT / "mkdocs.yml"),
        docs_dir=str(folder / "docs"),
        site_dir=str(folder / "site"),
        nav=["page.md"],
        strict=False,
    )
    build(config)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("[page](absent.md)", "'absent.md', but the target is not found"),
        ("[page](#absent)", "there is no such anchor on this page"),
        ("[page](/page.md)", "contains an absolute link '/page.md'"),
        ("[code](../trainers/sync.py)", "'../trainers/sync.py', but the target is not found"),
        ("![image](absent.png)", "'absent.png', but the target is not found"),
    ],
)
def test_a_wrong_link_is_reported(text, warning, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "mkdocs"):
        build_page(text, tmp_path)
    reported = [record.getMessage() for record in caplog.records if "'page.md' contains" in record.getMessage()]
    assert len(reported) == 1
    assert warning in reported[0]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<!-- generated: absent -->", "names no part"),
        ('--8<-- "examples/absent.py"', r"examples/absent\.py"),
        ("::: kfp_distributed.components.absent", "absent"),
    ],
)
def test_what_cannot_be_inserted_ends_the_build(text, error, tmp_path, caplog):
    with pytest.raises(Exception) as raised:  # noqa: PT011  (each plugin has errors of its own)
        build_page(text, tmp_path)
    assert re.search(error, f"{raised.value} {caplog.text}")
