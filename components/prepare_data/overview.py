"""The HTML overview of a prepared dataset."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kfp_distributed.components.prepare_data.split import Moments
from kfp_distributed.reports.parts import Table
from kfp_distributed.storage.dataset import Column, DatasetManifest, input_shape, read_batches

# The most that one page shows: 60 thumbnails of noise are 250 KB.
_MAX_ROWS = 50
_IMAGE_CLASSES = 10
_IMAGES = 6
_THUMBNAIL = 32


@dataclass(frozen=True)
class ClassRow:
    """A class of the label.

    Attributes:
        name: Name of the class.
        counts: Its rows in each split.
        rows: Its rows in all splits.
        images: Sample images, as PNG files.
    """

    name: str
    counts: tuple[int, ...]
    rows: int
    images: tuple[bytes, ...]


@dataclass(frozen=True)
class OverviewPage:
    """Content of the overview.

    Attributes:
        title: Name of the source.
        remarks: Remarks on the columns.
        splits: Each split with its rows, such as "train 1,437".
        classes: The first classes.
        class_count: Number of all classes.
        most_rows: Rows of the largest class.
        inputs: The input columns with the statistics of their numbers.
    """

    title: str
    remarks: tuple[str, ...]
    splits: tuple[str, ...]
    classes: tuple[ClassRow, ...]
    class_count: int
    most_rows: int
    inputs: Table


def overview_page(
    manifests: Mapping[str, DatasetManifest],
    moments: Mapping[str, Moments],
    images: Mapping[str, Sequence[bytes]],
    remarks: Sequence[str] = (),
) -> OverviewPage:
    """Return the content of the overview, for the template prepare_data.html.

    Args:
        manifests: Manifest of each split.
        moments: Statistics of each input of numbers in the training split.
        images: PNG files of some classes.
        remarks: Remarks on the columns.
    """
    train = manifests["train"]
    counts = list(zip(*(manifest.class_counts for manifest in manifests.values()), strict=True))
    classes = list(zip(train.label.classes, counts, strict=True))
    return OverviewPage(
        title=train.source,
        remarks=tuple(remarks),
        splits=tuple(f"{split} {manifest.rows:,}" for split, manifest in manifests.items()),
        classes=tuple(ClassRow(name, row, sum(row), tuple(images.get(name, ()))) for name, row in classes[:_MAX_ROWS]),
        class_count=len(classes),
        most_rows=max(map(sum, counts)),
        inputs=Table(
            ("input", "", "missing", "mean", "deviation", "lowest", "highest"),
            tuple(_input_row(column, moments.get(column.name)) for column in train.columns[:_MAX_ROWS]),
            len(train.columns),
        ),
    )


def _input_row(column: Column, moments: Moments | None) -> tuple[str, ...]:
    row = (column.name, " by ".join(map(str, column.shape)) or column.kind)
    if moments is None:
        return row
    numbers = (moments.missing, moments.mean, moments.std, moments.low, moments.high)
    return (*row, *(f"{number:.4g}" for number in numbers))


def sample_images(folder: Path, manifest: DatasetManifest) -> dict[str, list[bytes]]:
    """Read some images of each of the first classes.

    The smallest number of all samples becomes black and the largest white.

    Returns:
        PNG files by class; {} if the rows are not images, or all numbers of the samples are missing.
    """
    shape = input_shape(manifest)
    if len(shape) not in (2, 3) or shape[2:] not in ((), (1,), (3,)):
        return {}
    rows, labels = next(read_batches(folder, manifest))
    samples = {
        name: rows[labels == index][:_IMAGES] for index, name in enumerate(manifest.label.classes[:_IMAGE_CLASSES])
    }
    numbers = np.concatenate(list(samples.values()))
    numbers = numbers[~np.isnan(numbers)]
    if not numbers.size:
        return {}
    low, high = numbers.min(), numbers.max()
    pixels = shape if shape[2:] == (3,) else shape[:2]
    scale = 255 / ((high - low) or 1)
    return {
        name: [_png(np.nan_to_num((image - low) * scale).reshape(pixels)) for image in images]
        for name, images in samples.items()
    }


def _png(pixels: NDArray[np.float32]) -> bytes:
    image = Image.fromarray(pixels.astype(np.uint8))
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
