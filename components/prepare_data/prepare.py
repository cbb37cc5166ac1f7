"""The preparation of a source: fetch it, scan it, plan the split, write the datasets and the overview."""

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from kfp_distributed.components.artifacts import Artifact
from kfp_distributed.components.prepare_data.data_warnings import (
    duplicate_warnings,
    leakage_warnings,
    scaling_warnings,
    unseen_warnings,
)
from kfp_distributed.components.prepare_data.fetch import local_copy
from kfp_distributed.components.prepare_data.options import Options
from kfp_distributed.components.prepare_data.overview import overview_page
from kfp_distributed.components.prepare_data.pieces import Pieces
from kfp_distributed.components.prepare_data.plan import plan_split
from kfp_distributed.components.prepare_data.reading import CodesFound, RejectedRows
from kfp_distributed.components.prepare_data.scan import Scan, scan
from kfp_distributed.components.prepare_data.sources import Source, open_source
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
        targets = {split: Path(dataset.path) for split, dataset in datasets.items()}
        parent = targets["train"].parent
        # Beside the outputs, because their disk has place for the rows.
        with _folder(parent), tempfile.TemporaryDirectory(prefix=".prepare-data-", dir=parent) as unfinished:
            data, pieces, found = _read(path, options, Path(scratch), Path(unfinished))
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


def _read(path: Path | None, options: Options, scratch: Path, unfinished: Path) -> tuple[Source, Pieces, Scan]:
    """Read and check all rows; return the source, the rows and what they are.

    Args:
        path: File or folder of the source; None for the digits.
        options: Options of reading.
        scratch: Empty folder for unpacked files.
        unfinished: Folder for the rows.
    """
    codes: dict[str, str] = {}
    logged: set[str] = set()
    while True:
        rejected = RejectedRows(options.on_bad_row)
        data = open_source(path, options, scratch, codes)
        _log(note for note in data.notes if note not in logged)
        logged |= {*data.notes}
        pieces = Pieces(unfinished / f"pieces-{len(codes)}", data.expected_bytes, options.seed)
        try:
            found = scan(data, pieces, rejected)
        except CodesFound as found_code:  # From the first row on, the column must be read in another way.
            codes[found_code.column] = found_code.value
            pieces.delete()
            continue
        _log(rejected.notes())
        return replace(data, notes=(*data.notes, *rejected.notes())), pieces, found


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
