"""The HTML overview: one page that needs nothing else."""

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kfp_distributed.components.prepare_data.split import Moments
from kfp_distributed.storage.dataset import DatasetManifest, input_shape, read_batches

# What one page shows at most: 60 thumbnails of noise are 250 KB.
_MOST_ROWS = 50
_IMAGE_CLASSES = 10
_IMAGES = 6
_THUMBNAIL = 32
# The first three lines are those of the reports of `train` and `evaluate`.
_STYLE = (
    ":root{color-scheme:light dark}body{font:15px system-ui;margin:2em}"
    "table{border-collapse:collapse;display:block;overflow:auto;margin:1em 0}"
    "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #8884}"
    "img{image-rendering:pixelated;height:3em}"
)


def render_overview(
    manifests: Mapping[str, DatasetManifest],
    moments: Mapping[str, Moments],
    images: Mapping[str, Sequence[bytes]],
    remarks: Sequence[str] = (),
) -> str:
    """Draw the counts by class and split, sample images and the statistics of the columns as an HTML page.

    Args:
        manifests: The splits.
        moments: Statistics of each input of numbers in the training split.
        images: PNG files of some classes.
        remarks: What a person should know of the columns.
    """
    train = manifests["train"]
    counts = list(zip(*(manifest.class_counts for manifest in manifests.values()), strict=True))
    most = max(map(sum, counts))
    classes = [
        [escape(name), *row, f"<meter max={most} value={sum(row)}></meter>", *map(_image, images.get(name, ()))]
        for name, row in zip(train.label.classes, counts, strict=True)
    ]
    inputs: list[list[object]] = []
    for column in train.columns:
        inputs.append([escape(column.name), " by ".join(map(str, column.shape)) or column.kind])
        if seen := moments.get(column.name):
            numbers = seen.missing, seen.mean, seen.std, seen.low, seen.high
            inputs[-1] += [f"{number:.4g}" for number in numbers]
    heads = [f"{split} {manifest.rows:,}" for split, manifest in manifests.items()]
    return (
        f"<!doctype html><meta charset=utf-8><style>{_STYLE}</style><h1>{escape(train.source)}</h1>"
        + (f"<ul><li>{'<li>'.join(map(escape, remarks))}</ul>" if remarks else "")
        + _table(["class", *heads], classes)
        + _table(["input", "", "missing", "mean", "deviation", "lowest", "highest"], inputs)
    )


def _table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """A table of cells that are HTML already."""
    lines = [*rows[:_MOST_ROWS], *[["…", f"{len(rows):,} in all"]] * (len(rows) > _MOST_ROWS)]
    body = "".join("<tr><td>" + "<td>".join(map(str, line)) for line in lines)
    return f"<table><tr><th>{'<th>'.join(map(str, head))}{body}</table>"


def _image(file: bytes) -> str:
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(file).decode()}">'


def sample_images(folder: Path, manifest: DatasetManifest) -> dict[str, list[bytes]]:
    """Read some images of each of the first classes, as PNG files; nothing if the rows are no images.

    The smallest number of all samples becomes black and the largest white.
    """
    shape = input_shape(manifest)
    if len(shape) not in (2, 3) or shape[2:] not in ((), (1,), (3,)):
        return {}
    rows, labels = next(read_batches(folder, manifest))
    found = {
        name: rows[labels == index][:_IMAGES] for index, name in enumerate(manifest.label.classes[:_IMAGE_CLASSES])
    }
    numbers = np.concatenate(list(found.values()))
    if not numbers.size:
        return {}
    low, high = np.nanmin(numbers), np.nanmax(numbers)
    pixels = shape if shape[2:] == (3,) else shape[:2]
    scale = 255 / ((high - low) or 1)
    return {
        name: [_png(np.nan_to_num((image - low) * scale).reshape(pixels)) for image in images]
        for name, images in found.items()
    }


def _png(pixels: NDArray[np.float32]) -> bytes:
    image = Image.fromarray(pixels.astype(np.uint8))
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
