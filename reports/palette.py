"""Colors of the charts. Each has a contrast of at least 3:1 on the light and on the dark background of a page."""

SERIES = ("#2f7ed8", "#d0661a", "#2b9a66", "#9a62d9", "#c94f8c", "#1b93a5", "#8f8420", "#c0564b")
"""Colors of the lines and bars of a chart, in order."""

MARK = "#d64545"
"""Color of marked points."""

STATES = {
    "queued": "#8a8f98",
    "waiting": "#a98b3d",
    "pulling": "#d0661a",
    "installing": "#9a62d9",
    "starting": "#1b93a5",
    "running": "#2f7ed8",
    "succeeded": "#2b9a66",
    "failed": "#d64545",
    "stopped": "#8a8f98",
}
"""Colors of the states of a replica, in the order in which a replica has them."""


def series_color(index: int) -> str:
    """Return the color of a series by its number, from 0. After the last color comes the first one again."""
    return SERIES[index % len(SERIES)]
