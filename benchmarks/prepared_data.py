"""Datasets for trainings: the steps of the pipeline that come before, and the digits as their source."""

from pathlib import Path
from typing import Any

import numpy as np
from kfp import dsl
from sklearn.datasets import load_digits

from kfp_distributed.components.prepare_data.component import prepare_data


def write_digits(file: Path, times: int) -> Path:
    """Write the digits dataset, repeated `times` times, to an .npz file."""
    digits = load_digits()
    images = digits.images.astype(np.uint8).reshape(-1, 8, 8, 1)
    np.savez(file, x=np.tile(images, (times, 1, 1, 1)), label=np.tile(digits.target, times))
    return file


def prepare(folder: Path, source: str | Path = "digits", **options: Any) -> Path:  # noqa: ANN401
    """Run the step `prepare_data` with its options. Return a folder with the datasets train, validation and test."""
    datasets = {f"{split}_dataset": artifact(dsl.Dataset, folder / split) for split in ("train", "validation", "test")}
    prepare_data(**datasets, overview=artifact(dsl.HTML, folder / "overview"), source=str(source), **options)
    return folder


def artifact(kind: type[dsl.Artifact], path: Path) -> dsl.Artifact:
    """Return an artifact of a step at a path."""
    return kind(name=path.name, uri=str(path), metadata={})
