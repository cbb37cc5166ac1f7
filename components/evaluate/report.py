"""The HTML report of an evaluation: one file that shows itself anywhere, light or dark."""

import base64
import math
from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.evaluate.scores import Scores

_PICTURE_PIXELS = 96
# The first three lines are those of the reports of `prepare_data` and `train`.
_STYLE = (
    ":root{color-scheme:light dark}body{font:15px system-ui;margin:2em}"
    "table{border-collapse:collapse;display:block;overflow:auto;margin:1em 0}"
    "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #8884}"
    "td{text-align:right}figure{display:inline-block;width:9em;margin:.4em}img{width:100%;image-rendering:pixelated}"
)


def render_report(title: str, scores: Scores, mistakes: Sequence[str]) -> str:
    """Renders the report as one HTML document without scripts and without addresses of anything else.

    Args:
        title: What was evaluated.
        scores: The scores.
        mistakes: What `draw_mistake` made.
    """
    head = ["true ╲ predicted", "rows", "precision", "recall", *scores.drawn]
    # HTML needs no tags that end cells and lines.
    page = (
        f"<!DOCTYPE html><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>{escape(title)}</h1><p>accuracy {scores.accuracy:.4f}, loss {scores.loss:.4f}, {scores.rows:,} rows"
        f"<table><tr><th>{'<th>'.join(map(escape, head))}"
    )
    lines = zip(scores.classes, scores.confusion.tolist(), scores.precision_and_recall(), strict=True)
    for name, counts, (precision, recall) in lines:
        shares = f"<td>{precision:.3f}<td>{recall:.3f}".replace("nan", "—")
        page += f"<tr><th>{escape(name)}<td>{sum(counts):,}{shares}"
        for count in counts[: len(scores.drawn)]:
            # The root keeps the few mistakes of a good model visible; 0.6 keeps the number legible, light and dark.
            heat = 0.6 * math.sqrt(count / max(sum(counts), 1))
            page += f'<td style="background:rgb(40 120 220/{heat:.2f})">{count}'
    return f"{page}</table><h2>First mistakes</h2>{''.join(mistakes)}\n"


def draw_mistake(features: NDArray[np.float32], shape: Sequence[int], caption: str) -> str:
    """Draws a row, if it is an image, as HTML.

    Args:
        features: The row, flat. Its range is spread over black to white; what is not finite counts as 0.
        shape: Its shape; [height, width], perhaps with 1 or 3 channels behind, is an image. Large ones lose lines.
        caption: What to write below.
    """
    image = ""
    if (*shape, 1)[2:] in ((1,), (1, 1), (3, 1)):
        import tensorflow as tf

        step = math.ceil(max(shape[:2]) / _PICTURE_PIXELS)
        pixels = np.nan_to_num(features, posinf=0, neginf=0).reshape((*shape, 1)[:3])[::step, ::step]
        pixels = (pixels - pixels.min()) * (255 / (np.ptp(pixels) or 1))
        png = base64.b64encode(tf.io.encode_png(pixels.astype(np.uint8)).numpy()).decode()
        image = f'<img alt="" src="data:image/png;base64,{png}">'
    return f"<figure>{image}<figcaption>{escape(caption)}</figure>"
