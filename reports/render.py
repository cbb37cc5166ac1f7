"""Renders the pages of the steps from the templates of this package."""

import base64
import re

from jinja2 import Environment, PackageLoader, StrictUndefined

_FORBIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
"""Control characters, which HTML does not allow, and surrogates, which UTF-8 cannot encode. Logs may have both."""


def render_page(template: str, page: object) -> str:
    """Render a page as one HTML document that loads nothing from elsewhere.

    All values are escaped. Characters that HTML does not allow become U+FFFD.

    Args:
        template: Name of a template of this package, such as "train.html".
        page: Values that the template reads as `page`.

    Raises:
        jinja2.TemplateNotFound: The package has no such template.
        jinja2.UndefinedError: `page` lacks a value that the template reads.
    """
    text = _ENVIRONMENT.get_template(template).render(page=page)
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


def _png_uri(png: bytes) -> str:
    """Return a PNG file as the address of an image."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


_ENVIRONMENT = Environment(
    loader=PackageLoader("kfp_distributed.reports"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_ENVIRONMENT.filters["png_uri"] = _png_uri
