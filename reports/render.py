"""Renders the pages of the steps from the templates of this package."""

import base64
import re

from jinja2 import Environment, PackageLoader, StrictUndefined

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
