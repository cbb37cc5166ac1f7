"""The preparation of a source: fetch it, scan it, plan the split, write the datasets and the overview."""

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from kfp_distributed.components.artifacts import Artifact
from kfp_distributed.components.prepare_data.data_warnings import (
    duplicate_warnings,
    leakage_warnings,
    scaling_warnings,
    unseen_warnings,
)
from kfp_distributed.components.prepare_data.fetch import local_copy
from kfp_distributed.components.prepare_data.overview import overview_page
from kfp_distributed.components.prepare_data.pieces import Pieces
from kfp_distributed.components.prepare_data.plan import Options, plan_split
from kfp_distributed.components.prepare_data.scan import scan
from kfp_distributed.components.prepare_data.sources import open_source
from kfp_distributed.components.prepare_data.split import write_splits
from kfp_distributed.components.source_address import DIGITS, without_secrets
from kfp_distributed.reports.page import render_page
from kfp_distributed.storage.dataset import DatasetManifest


def prepare(
    source: str, options: Options, datasets: Mapping[str, Artifact], overview: str
) -> dict[str, DatasetManifest]:
    """Write the train, validation and test datasets and the overview of a source.

    The outputs appear only when all of them are complete.

    Args:
        source: "digits", or path or address of the data.
        options: Options of reading and splitting.
        datasets: Output artifacts "train", "validation" and "test". Rows and classes are added to their metadata.
        overview: Path of the HTML page.

    Returns:
        The manifest of each split.

    Raises:
        ValueError: The source or an option is wrong. No output is written.
        OSError: The source cannot be downloaded, or a dataset cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="prepare-data-") as scratch:
        path = None if source == DIGITS else local_copy(source, Path(scratch))
        data = open_source(path, options, Path(scratch))
        _log(data.notes)
        targets = {split: Path(dataset.path) for split, dataset in datasets.items()}
        parent = targets["train"].parent
        parent.mkdir(parents=True, exist_ok=True)
        # Beside the outputs, because their disk has place for the rows.
        with tempfile.TemporaryDirectory(prefix=".prepare-data-", dir=parent) as unfinished:
            pieces = Pieces(Path(unfinished, "pieces"), data.expected_bytes, options.seed)
            found = scan(data, pieces)
            warnings = [*scaling_warnings(found.columns), *found.warnings]
            _log(warnings)
            plan = plan_split(found.class_counts, options)
            folders = {split: Path(unfinished, split) for split in targets}
            for folder in folders.values():
                folder.mkdir()
            manifests, profile = write_splits(
                pieces, found, plan, options, without_secrets(source), folders, Path(unfinished)
            )
            warnings_of_rows = [
                *leakage_warnings(profile.predictors),
                *duplicate_warnings(profile.duplicates, found.collapsed),
                *unseen_warnings(profile.unseen),
            ]
            _log(warnings_of_rows)
            page = Path(unfinished, "overview")
            content = overview_page(manifests, profile, found.missing, [*data.notes, *warnings_of_rows, *warnings])
            page.write_text(render_page("prepare_data.html", content), encoding="utf-8")
            for split, target in targets.items():
                shutil.rmtree(target, ignore_errors=True)
                folders[split].replace(target)
            page.replace(overview)
    for split, manifest in manifests.items():
        datasets[split].metadata.update(rows=manifest.rows, classes=len(manifest.label.classes))
        shards = len(manifest.shards)
        print(f"{split}: {manifest.rows:,} rows in {shards} shard{'s' * (shards != 1)}", flush=True)
    return manifests


def _log(warnings: Iterable[str]) -> None:
    for warning in warnings:
        print(f"warning: {warning}", flush=True)
