"""Renders the pages of the steps from the templates of this package."""

import base64
import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from bokeh.resources import Resources
from jinja2 import Environment, PackageLoader, StrictUndefined

from kfp_distributed.reports.charts import Chart
from kfp_distributed.reports.figure_json import figure_json

_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])")
"""Escape sequences of terminals (ECMA-48): control sequences such as colours, control strings such as links, others."""

_LINE_END = re.compile(r"\r\n?")
_FORBIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
"""Control characters, which HTML does not allow, and surrogates, which UTF-8 cannot encode. Logs may have both."""


def render_page(template: str, page: object) -> str:
    """Render a page as one HTML document that loads nothing from elsewhere.

    All values are escaped. Values may be output of programs: escape sequences of terminals are left out, a CR is a
    line end, and characters that HTML does not allow become U+FFFD.

    Args:
        template: Name of a template of this package, such as "train.html".
        page: Values that the template reads as `page`.

    Raises:
        jinja2.TemplateNotFound: The package has no such template.
        jinja2.UndefinedError: `page` lacks a value that the template reads.
    """
    return _ENVIRONMENT.get_template(template).render(page=page)


def _clean(value: object) -> object:
    """Return a value with the text that the page shows."""
    if not isinstance(value, str) or hasattr(value, "__html__"):  # A macro returns markup of clean values.
        return value
    lines = _LINE_END.sub("\n", _ESCAPE_SEQUENCE.sub("", value))
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", lines)


def _png_uri(png: bytes) -> str:
    """Return a PNG file as the address of an image."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


def _figure_data(chart: Chart) -> str:
    """Return the figure of a chart as compressed JSON."""
    item = _clean_texts(figure_json(chart.figure, chart.data))
    return _compressed(json.dumps(item, separators=(",", ":")).encode())


def _clean_texts(value: Any) -> Any:  # noqa: ANN401
    """Return a JSON value with all texts as the page shows them."""
    if isinstance(value, dict):
        return {key: _clean_texts(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean_texts(item) for item in value]
    return _clean(value)


@cache
def _bokeh_script() -> str:
    """Return BokehJS from the package bokeh, compressed from 1.3 MB to 0.4 MB."""
    (file,) = Resources(mode="absolute", components=["bokeh"], minified=True).js_files
    return _compressed(Path(file).read_bytes())


def _compressed(content: bytes) -> str:
    """Return content for a `script` element as base64 of gzip. The page's script decompresses it."""
    # Level 9 needs 70 ms instead of 40 ms for BokehJS, and makes it 0.3 % smaller.
    return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode("ascii")


_ENVIRONMENT = Environment(
    loader=PackageLoader("kfp_distributed.reports"),
    autoescape=True,
    finalize=_clean,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_ENVIRONMENT.filters["png_uri"] = _png_uri
_ENVIRONMENT.filters["figure_data"] = _figure_data
_ENVIRONMENT.globals["bokeh_script"] = _bokeh_script
