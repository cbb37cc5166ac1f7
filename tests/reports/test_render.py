"""What all pages have in common."""

import base64
import gzip
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import bokeh
import pytest
from jinja2 import UndefinedError
from pages import Page

from kfp_distributed.components.train.tell.report import JobPage
from kfp_distributed.library.archive import make_archive, read_archive
from kfp_distributed.library.content import read_library
from kfp_distributed.reports.charts import line_chart, timeline
from kfp_distributed.reports.page import render_page
from kfp_distributed.reports.parts import Table

pytestmark = pytest.mark.figures

ROOT = Path(__file__).parents[2]

CONTENT_SECURITY_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"

PAGES = [
    *(
        "evaluate.html",
        "evaluate_language_model.html",
        "evaluate_regression.html",
        "prepare_data.html",
        "train.html",
        "tune.html",
    ),
]


def job_page(**values):
    texts = {"title": "train", "outcome": "failed after 1 s", "job": "a-job", "cause": "", "last_lines": ""}
    charts = {
        "curves": (),
        "measure_count": 0,
        "timeline": timeline("Replicas over time", {}),
        "usage": (),
        "facts": (),
    }
    tables = {name: Table((name,), ()) for name in ("replicas", "answers")}
    tables["events"] = Table(("after", "what happened"), ())
    return JobPage(**{**texts, **charts, **tables, "succeeded": False, "manifest": "", **values})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("\"a\" & 'b' &lt; </pre>", "\"a\" & 'b' &lt; </pre>"),
        ("{{ page.title }} {% raw %}", "{{ page.title }} {% raw %}"),
        ("Größe 大小 😀", "Größe 大小 😀"),
        ("a\tb\nc", "a\tb\nc"),
        (
            "10 %\r20 %\r\nError\x00",
            "10 %\n20 %\nError\N{REPLACEMENT CHARACTER}",
        ),
        ("\x1b[1;31mError\x1b[0m \x1b[>4;1m<b>\x1b[K", "Error <b>"),
        ("\x1b]8;;https://example.com\x1b\\a link\x1b]8;;\x07 \x1b(B\x1b7end", "a link end"),
        ("\x1b[ü \x1b]0;cut", "ü 0;cut"),
        ("caf\udce9.csv", "caf\N{REPLACEMENT CHARACTER}.csv"),
    ],
)
def test_text_is_shown_literally(text, shown):
    html = render_page("train.html", job_page(title=text, cause=text, events=Table(("after", text), (("1 s", text),))))
    html.encode("utf-8")
    page = Page(html)
    assert page.tables[2] == [["after", shown], ["1 s", shown]]
    assert page.texts.count(shown) == 5  # The title, the heading, the cause and both cells.


@pytest.mark.parametrize("template", PAGES)
def test_a_value_that_a_page_lacks_is_an_error(template):
    with pytest.raises(UndefinedError, match="has no attribute"):
        render_page(template, object())


def test_a_page_loads_nothing():
    text = render_page("train.html", job_page())
    page = Page(text)
    assert {tag for tag, _ in page.elements}.isdisjoint({"link", "img", "iframe"})
    assert not any(part in text for part in ("http:", "https:", "url(", "@import", "src=", "href="))
    assert {"http-equiv": "Content-Security-Policy", "content": CONTENT_SECURITY_POLICY} in page.all("meta")
    assert "color-scheme: light dark" in text


def test_a_page_contains_bokeh_once_and_each_figure_without_markup():
    text = "</script><!-- \x1b[31mred\x00"
    chart = line_chart(text, "epoch", "loss", {text: [(1, 2.0), (2, 1.0)]})
    page = render_page("train.html", job_page(curves=(chart, chart)))
    (script,) = re.findall(r'<script type="application/gzip" id="bokeh">(.*?)</script>', page)
    version = f'version="{bokeh.__version__}"'
    assert version in decompress(script).replace(" = ", "=")
    figures = [decompress(text) for text in re.findall(r'<script type="application/gzip">(.*?)</script>', page)]
    assert [figure.count("</script><!-- red\\ufffd") for figure in figures] == [1, 1, 0]
    assert [json.loads(figure)["version"] for figure in figures] == [bokeh.__version__] * 3


def decompress(text):
    return gzip.decompress(base64.b64decode(text)).decode()


def test_a_chart_without_a_figure_says_so():
    page = Page(render_page("train.html", job_page(curves=(line_chart("loss", "epoch", "loss", {"a": []}),))))
    assert {"loss", "No values."} <= set(page.texts)
    assert "Data of loss" not in page.texts


def test_a_chart_has_a_title_a_summary_a_legend_and_its_data():
    chart = line_chart("loss", "epoch", "loss", {"a": [(1, 2.0)], "b": [(1, float("nan")), (2, 1.0)]})
    page = Page(render_page("train.html", job_page(curves=(chart,))))
    assert page.tables[0] == [["epoch", "a", "b"], ["1", "2", ""], ["2", "", "1"]]
    assert {"loss", "a", "b", "b: nan at epoch 1", "Data of loss"} <= set(page.texts)
    assert page.all("div")[1]["data-figure"] == chart.summary
    assert page.all("div")[2]["aria-label"] == "Data of loss"


def test_a_short_table_has_no_row_of_the_total():
    shown = Table(("name",), (("a",), ("b",)), 2)
    cut = Table(("name",), (("a",), ("b",)), 1234)
    page = Page(render_page("train.html", job_page(replicas=shown, events=cut)))
    assert page.tables[1:] == [[["name"], ["a"], ["b"]], [["name"], ["a"], ["b"], ["…", "1,234 in all"]]]


RENDER = """
import sys
import tomllib
sys.path.insert(0, sys.argv[1])
from kfp_distributed.reports import page
assert page.__file__.startswith(sys.argv[1]), page.__file__
print(sorted(page._ENVIRONMENT.list_templates()))
for template in page._ENVIRONMENT.list_templates(["html"]):
    page._ENVIRONMENT.get_template(template)
"""


def test_templates_load_from_the_unpacked_library(tmp_path):
    for path, content in read_archive(make_archive(read_library())).items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", RENDER, str(tmp_path)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    names = sorted(["base.html", "charts.js", "macros.html", "style.css", *PAGES])
    assert (done.returncode, done.stdout.strip()) == (0, str(names)), done.stderr


def test_a_wheel_contains_each_file_of_the_library():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packaged = {
        f"{package.replace('.', '/')}/{file.relative_to(folder).as_posix()}"
        for package, folder in ((name, ROOT / setuptools["package-dir"][name]) for name in setuptools["packages"])
        for pattern in ("*.py", *setuptools["package-data"].get(package, []))
        for file in folder.glob(pattern)
    }
    assert set(read_library()) <= packaged
