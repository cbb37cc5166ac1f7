"""The preparation of a source: fetch it, scan it, plan the split, write the datasets and the overview."""

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from kfp_distributed.components.artifacts import Artifact
from kfp_distributed.components.prepare_data.data_warnings import (
    duplicate_warnings,
    leakage_warnings,
    scaling_warnings,
    unseen_warnings,
    untrained_warnings,
)
from kfp_distributed.components.prepare_data.disk_errors import disk_errors
from kfp_distributed.components.prepare_data.fetch import local_copy
from kfp_distributed.components.prepare_data.overview import overview_page
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.read import read_sources
from kfp_distributed.components.prepare_data.strata import plan_strata
from kfp_distributed.components.prepare_data.write import write_splits
from kfp_distributed.components.source_address import DIGITS
from kfp_distributed.library.address_secrets import without_secrets
from kfp_distributed.reports.page import render_page
from kfp_distributed.storage.dataset import DatasetManifest


def prepare(
    source: str,
    options: Options,
    datasets: Mapping[str, Artifact],
    overview: str,
    sources_of_splits: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, DatasetManifest]:
    """Write the train, validation and test datasets and the overview of a source.

    The outputs appear only when all of them are complete.

    Args:
        source: "digits", or path or address of the data.
        options: Options of reading and splitting.
        datasets: Output artifacts "train", "validation" and "test". Rows and classes are added to their metadata.
        overview: Path of the HTML page.
        sources_of_splits: Paths or addresses of rows of "validation" or "test" alone. Default: none.

    Returns:
        The manifest of each split.

    Raises:
        ValueError: The source or an option is wrong. No output is written.
        OSError: The source cannot be downloaded, or a dataset cannot be written.
    """
    targets = {split: Path(dataset.path) for split, dataset in datasets.items()}
    parent = targets["train"].parent
    with tempfile.TemporaryDirectory(prefix="prepare-data-") as scratch:
        files = {split: _local(address, Path(scratch, split)) for split, address in sources_of_splits.items()}
        files = {"": _local(source, Path(scratch, "source")), **files}
        # Beside the outputs, because their disk has place for the rows.
        with (
            disk_errors(parent, Path(scratch)),
            _folder(parent),
            tempfile.TemporaryDirectory(prefix=".prepare-data-", dir=parent) as unfinished,
        ):
            read = read_sources(files, options, Path(scratch), Path(unfinished), _log)
            warnings = [*scaling_warnings(read.scan.columns), *read.scan.warnings]
            _log(warnings)
            strata = plan_strata(read.pieces, read.scan, read.split_by, options, read.fixed_splits)
            _log(strata.warnings)
            folders = {split: Path(unfinished, split) for split in targets}
            for folder in folders.values():
                folder.mkdir()
            with disk_errors(parent, Path(scratch), read.pieces.expected_bytes):
                manifests, profile = write_splits(
                    read.pieces, read.scan, strata, options, without_secrets(source), folders, Path(unfinished)
                )
            train = manifests["train"]
            warnings_of_rows = [
                *leakage_warnings(profile.predictors),
                *duplicate_warnings(profile.duplicates, read.scan.collapsed),
                *unseen_warnings(profile.unseen),
                *untrained_warnings(train.label.name, train.label.classes, train.class_counts),
            ]
            _log(warnings_of_rows)
            page = Path(unfinished, "overview")
            notes = [*read.notes, *strata.warnings, *warnings_of_rows, *warnings]
            content = overview_page(manifests, profile, read.scan.missing, notes)
            page.write_text(render_page("prepare_data.html", content), encoding="utf-8")
            for split, target in targets.items():
                shutil.rmtree(target, ignore_errors=True)
                folders[split].replace(target)
            page.replace(overview)
    for split, manifest in manifests.items():
        datasets[split].metadata.update(rows=manifest.rows, task=manifest.label.task)
        if manifest.label.classes:
            datasets[split].metadata.update(classes=len(manifest.label.classes))
        shards = len(manifest.shards)
        print(f"{split}: {manifest.rows:,} rows in {shards} shard{'s' * (shards != 1)}", flush=True)
    return manifests


def _local(source: str, scratch: Path) -> Path | None:
    """Return the path of a source, and download it first if it is remote; None for the digits."""
    scratch.mkdir()
    return None if source == DIGITS else local_copy(source, scratch)


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Create a folder. If an error follows and it is empty, delete it."""
    is_new = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):
                path.rmdir()
        raise


def _log(warnings: Iterable[str]) -> None:
    for warning in warnings:
        print(f"warning: {warning}", flush=True)
