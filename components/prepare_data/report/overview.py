"""The HTML overview of a prepared dataset."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kfp_distributed.components.prepare_data.report.duplicates import MAXIMUM_HASHES
from kfp_distributed.components.prepare_data.report.leakage import SUSPICIOUS_REDUCTION, Predictor
from kfp_distributed.components.prepare_data.report.profile import Profile
from kfp_distributed.components.prepare_data.report.sample import SHOWN_ROWS, RowSample
from kfp_distributed.components.summaries.histograms import count_bins
from kfp_distributed.components.summaries.moments import Moments
from kfp_distributed.components.summaries.row_texts import row_texts
from kfp_distributed.reports.charts import Chart, bar_chart, histogram
from kfp_distributed.reports.parts import Table
from kfp_distributed.storage.dataset import Column, DatasetManifest, input_shape, is_image

# The most that one page shows, so that it stays below 2 MB: 60 thumbnails of noise are 250 KB, a histogram is 8 KB.
_CLASSES = 50
_COLUMNS = 100
_HISTOGRAMS = 24
_MISSING = 30
_PREDICTORS = 15
_TEXT_LENGTH = 40
# Of rows without a label, such as conversations, the texts are what matters.
_LONG_TEXT_LENGTH = 300
_SAMPLE_COLUMNS = 20
_IMAGE_CLASSES = 10
_IMAGES = 6
_THUMBNAIL = 32


@dataclass(frozen=True)
class ClassImages:
    """Sample images of a class.

    Attributes:
        name: Name of the class.
        images: PNG files.
    """

    name: str
    images: tuple[bytes, ...]


@dataclass(frozen=True)
class OverviewPage:
    """Content of the overview.

    Attributes:
        title: Name of the source.
        facts: Names and values of the main numbers.
        warnings: Problems of the data.
        classes: Rows of each class by split; of a number to predict its distribution; None without a label.
        class_count: Number of all classes; 0 without classes.
        images: Sample images; () if the rows are no images.
        rows: Sample rows; None if the rows are images.
        missing: Share of missing values by column; None if no value is missing.
        predictors: Error reduction of the best single predictors; None if none could be measured.
        duplicates: Rows that occur in several splits.
        histograms: Distributions of the first columns of numbers.
        number_columns: Number of all columns of numbers.
        lengths: Distributions of the words of the first columns of texts that are kept.
        columns: The inputs with the statistics of their numbers.
        sample_rows: Number of training rows that were sampled.
        training_rows: Number of all training rows.
        duplicates_are_exact: Whether the duplicates are counted rather than estimated.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    classes: Chart | None
    class_count: int
    images: tuple[ClassImages, ...]
    rows: Table | None
    missing: Chart | None
    predictors: Chart | None
    duplicates: Table
    histograms: tuple[Chart, ...]
    number_columns: int
    lengths: tuple[Chart, ...]
    columns: Table
    sample_rows: int
    training_rows: int
    duplicates_are_exact: bool

    SUSPICIOUS_REDUCTION: ClassVar[float] = SUSPICIOUS_REDUCTION
    MAXIMUM_HASHES: ClassVar[int] = MAXIMUM_HASHES


def overview_page(
    manifests: Mapping[str, DatasetManifest],
    profile: Profile,
    missing: Mapping[str, int],
    warnings: Sequence[str] = (),
) -> OverviewPage:
    """Return the content of the overview, for the template prepare_data.html.

    Args:
        manifests: Manifest of each split.
        profile: Profile of the rows.
        missing: Rows of each input without a value, in all splits.
        warnings: Problems of the data, a line each.
    """
    train = manifests["train"]
    rows = sum(manifest.rows for manifest in manifests.values())
    classes = train.label.classes
    images = sample_images(profile.sample, train)
    numbers = [column for column in train.columns if column.kind in ("number", "tensor")]
    return OverviewPage(
        title=train.source,
        facts=_facts(manifests),
        warnings=tuple(warnings),
        classes=_label_chart(manifests, profile.sample),
        class_count=len(classes),
        images=images,
        rows=None if images else sample_table(profile.sample, train),
        missing=_missing_chart(missing, rows),
        predictors=_predictor_chart(profile.predictors),
        duplicates=Table(
            ("rows of", "with the inputs of a row of", "rows", "share"),
            tuple((pair.split, pair.other, f"{pair.rows:,}", f"{pair.share:.1%}") for pair in profile.duplicates),
        ),
        histograms=tuple(_histograms(profile.sample, train, numbers[:_HISTOGRAMS])),
        number_columns=len(numbers),
        lengths=tuple(_lengths(profile.sample, train)),
        columns=Table(
            ("input", "kind", "missing", "mean", "standard deviation", "minimum", "maximum"),
            tuple(
                _column_row(column, missing.get(column.name, 0), profile.moments.get(column.name))
                for column in train.columns[:_COLUMNS]
            ),
            len(train.columns),
        ),
        sample_rows=len(profile.sample.labels),
        training_rows=profile.sample.total,
        duplicates_are_exact=all(pair.is_exact for pair in profile.duplicates),
    )


def _label_chart(manifests: Mapping[str, DatasetManifest], sample: RowSample) -> Chart | None:
    """Return the rows of each class by split, or the distribution of a number to predict."""
    label = manifests["train"].label
    if label.task == "classification":
        return bar_chart(
            f"Rows of each class of {label.name}",
            label.classes[:_CLASSES],
            {split: manifest.class_counts[:_CLASSES] for split, manifest in manifests.items()},
            x="class",
        )
    if label.task == "none":
        return None
    edges, counts, outliers = count_bins(sample.labels[:, np.newaxis], sample.labels, ())
    title = f"Distribution of {label.name}" + (f" ({outliers:,} outliers are not shown)" if outliers else "")
    return histogram(title, edges, counts, y="rows") if edges else None


def _facts(manifests: Mapping[str, DatasetManifest]) -> tuple[tuple[str, str], ...]:
    """Return name and value of the main numbers."""
    train = manifests["train"]
    label = train.label
    facts: tuple[tuple[str, str], ...] = (("task", label.task),)
    if label.task == "classification":
        class_rows = sorted(map(sum, zip(*(manifest.class_counts for manifest in manifests.values()), strict=True)))
        fewest, most = f"{class_rows[0]:,}", f"{class_rows[-1]:,}"
        facts = (
            *facts,
            ("classes", f"{len(class_rows):,}"),
            ("rows per class", fewest if fewest == most else f"{fewest} to {most}"),
        )
    elif label.task == "regression":
        facts = (*facts, ("mean to predict", f"{label.mean:,.6g}"), ("standard deviation", f"{label.std:,.6g}"))
    return (
        ("rows", f"{sum(manifest.rows for manifest in manifests.values()):,}"),
        *((f"{split} rows", f"{manifest.rows:,}") for split, manifest in manifests.items()),
        ("inputs", f"{len(train.columns):,}"),
        *facts,
    )


def _column_row(column: Column, missing: int, moments: Moments | None) -> tuple[str, ...]:
    kind: str = f"{column.kind} ({column.dtype})" if column.kind == "kept" else column.source_type or column.kind
    if column.shape:
        kind = f"{kind} {' by '.join(map(str, column.shape))}"
    if column.vocabulary:
        kind = f"{kind}, {len(column.vocabulary):,} values"
    if moments is None or not moments.count.any():
        return (column.name, kind, f"{missing:,}")
    has_values = moments.count > 0
    low, high = f"{moments.low.min():,.6g}", f"{moments.high.max():,.6g}"
    ranges = (_range(moments.mean[has_values]), _range(moments.deviation[has_values]))
    return (column.name, kind, f"{missing:,}", *ranges, low, high)


def _range(values: NDArray[np.float64]) -> str:
    """Return the smallest and the largest number, or the number if they are equal."""
    low, high = f"{values.min():,.6g}", f"{values.max():,.6g}"
    return low if low == high else f"{low} to {high}"


def _missing_chart(missing: Mapping[str, int], rows: int) -> Chart | None:
    columns = sorted((name for name in missing if missing[name]), key=lambda name: -missing[name])[:_MISSING]
    if not columns:
        return None
    shares = [100 * missing[name] / rows for name in columns]
    return bar_chart("Missing values", columns, {"missing": shares}, x="column", y="% of all rows")


def _predictor_chart(predictors: Sequence[Predictor]) -> Chart | None:
    best = predictors[:_PREDICTORS]
    if not best:
        return None
    return bar_chart(
        "Columns that predict the label best",
        [predictor.column for predictor in best],
        {"error reduction": [max(0.0, predictor.error_reduction) for predictor in best]},
        x="column",
        y="error reduction",
        y_end=1.0,
    )


def _histograms(sample: RowSample, manifest: DatasetManifest, columns: Sequence[Column]) -> Iterator[Chart]:
    values = sample.columns(manifest.columns)
    for column in columns:
        edges, counts, outliers = count_bins(values[column.name], sample.labels, manifest.label.classes)
        if edges:
            title = f"{column.name} ({outliers:,} outliers are not shown)" if outliers else column.name
            yield histogram(title, edges, counts, y="values" if column.shape else "rows")


def _lengths(sample: RowSample, manifest: DatasetManifest) -> Iterator[Chart]:
    """Yield the distribution of the number of words of each column of texts."""
    for name, words in [*sample.words.items()][:_HISTOGRAMS]:
        edges, counts, outliers = count_bins(words[:, np.newaxis], sample.labels, manifest.label.classes)
        if edges:
            longest = f", {outliers:,} longer texts are not shown" if outliers else ""
            title = f"Words of {name} (median {np.nanmedian(words):,.0f}, most {np.nanmax(words):,.0f}{longest})"
            yield histogram(title, edges, counts, y="rows")


def sample_table(sample: RowSample, manifest: DatasetManifest) -> Table:
    """Return some sampled rows: the label, and the first columns."""
    columns, label = manifest.columns[:_SAMPLE_COLUMNS], manifest.label
    encoded = [column for column in manifest.columns if column.kind != "kept"]
    length = _TEXT_LENGTH if label.name else _LONG_TEXT_LENGTH
    rows = []
    for number, features in enumerate(sample.features[:SHOWN_ROWS]):
        texts = dict(zip((column.name for column in encoded), row_texts(encoded, features), strict=True))
        texts |= {name: values[number][:length] for name, values in sample.kept.items()}
        value = sample.labels[number]
        cells = [label.classes[value] if label.classes else f"{value:.6g}"] if label.name else []
        rows.append((*cells, *(texts[column.name] for column in columns)))
    return Table((*(label.name and [label.name]), *(column.name for column in columns)), tuple(rows))


def sample_images(sample: RowSample, manifest: DatasetManifest) -> tuple[ClassImages, ...]:
    """Return some sampled images of each of the first classes.

    The smallest number of all of them becomes black and the largest white.

    Returns:
        The images of each class that has some; () if the rows are not images, or all numbers are missing.
    """
    columns = manifest.columns
    shape = input_shape(manifest) if all(column.kind != "kept" for column in columns) else ()
    if not shape or not is_image(shape) or not manifest.label.classes:
        return ()
    samples = {
        name: sample.features[sample.labels == index][:_IMAGES]
        for index, name in enumerate(manifest.label.classes[:_IMAGE_CLASSES])
    }
    numbers = np.concatenate(list(samples.values()))
    numbers = numbers[~np.isnan(numbers)]
    if not numbers.size:
        return ()
    low, high = numbers.min(), numbers.max()
    pixels = shape if shape[2:] == (3,) else shape[:2]
    scale = 255 / ((high - low) or 1)
    return tuple(
        ClassImages(name, tuple(_png(np.nan_to_num((image - low) * scale).reshape(pixels)) for image in images))
        for name, images in samples.items()
        if len(images)
    )


def _png(pixels: NDArray[np.float32]) -> bytes:
    image = Image.fromarray(pixels.astype(np.uint8))
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
