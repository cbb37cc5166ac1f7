"""Converts figures by Bokeh to JSON, as `Bokeh.embed.embed_item` of BokehJS reads it."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from bokeh import __version__
from bokeh.core.serialization import Serializer
from bokeh.document import Document
from bokeh.models import Plot
from bokeh.themes import Theme

_FONT = "system-ui, sans-serif"
_THEME = Theme(
    json={
        "attrs": {
            "Plot": {
                "background_fill_color": None,
                "border_fill_color": None,
                "outline_line_color": None,
                "min_border_right": 24,
                "min_border_top": 12,
            },
            "Axis": {
                "axis_label_standoff": 8,
                "axis_label_text_font": _FONT,
                "axis_label_text_font_size": "13px",
                "axis_label_text_font_style": "normal",
                "axis_line_color": None,
                "major_label_text_font": _FONT,
                "major_label_text_font_size": "12px",
                "major_tick_in": 0,
                "minor_tick_line_color": None,
            },
        }
    }
)
"""What figures look like in both color schemes. The colors of axes and grids are CSS variables in style.css."""


def figure_json(figure: Plot, data: Sequence[Mapping[str, Sequence[float]]] = ()) -> dict[str, Any]:
    """Return a figure as JSON.

    Args:
        figure: The figure.
        data: Columns of the data source of each renderer, in the order of the renderers. Default: the figure's own.
    """
    if not data:
        return _embed_item(figure)
    sources = {
        renderer.data_source.id: Serializer(deferred=False).encode(dict(columns))
        for renderer, columns in zip(figure.renderers, data, strict=True)
    }
    item: dict[str, Any] = _replace_data(_shared_item(figure), sources)
    return item


def _embed_item(figure: Plot) -> dict[str, Any]:
    """Return what `bokeh.embed.json_item` does. That function visits all models several times."""
    document = figure.document
    if document is None:
        # BokehJS would show another title as that of the page.
        document = Document(theme=_THEME, title="")
        document.add_root(figure)
    return {"target_id": None, "root_id": figure.id, "doc": document.to_json(deferred=False), "version": __version__}


@lru_cache(maxsize=16)
def _shared_item(figure: Plot) -> dict[str, Any]:
    """Return the JSON of a figure that several charts share."""
    return _embed_item(figure)


def _replace_data(value: Any, sources: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return the JSON of a figure with other data: `sources` has the data of each source by its ID."""
    if isinstance(value, dict):
        copy = {key: _replace_data(item, sources) for key, item in value.items()}
        # A source is complete where it occurs first. Elsewhere it is only its ID.
        if value.get("id") in sources and "attributes" in value:
            copy["attributes"]["data"] = sources[value["id"]]
        return copy
    if isinstance(value, list | tuple):
        return [_replace_data(item, sources) for item in value]
    return value
