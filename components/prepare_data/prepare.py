"""The preparation of a source: fetch it, scan it, plan the split, write the datasets and the overview."""

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa

from kfp_distributed.components.external_services.source_address import DIGITS
from kfp_distributed.components.kfp_interface.artifacts import Artifact
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.read import read_sources
from kfp_distributed.components.prepare_data.report.data_warnings import (
    duplicate_warnings,
    leakage_warnings,
    scaling_warnings,
    unseen_warnings,
)
from kfp_distributed.components.prepare_data.report.label_warnings import untrained_warnings
from kfp_distributed.components.prepare_data.report.log_scale import log_scale_lines
from kfp_distributed.components.prepare_data.report.outliers import label_outlier_warnings, outlier_warnings
from kfp_distributed.components.prepare_data.report.overview import OverviewPage, overview_page
from kfp_distributed.components.prepare_data.report.profile import Profile
from kfp_distributed.components.prepare_data.sources.disk_errors import disk_errors
from kfp_distributed.components.prepare_data.sources.fetch import is_stored, local_copy, refuse_downloads, stored_source
from kfp_distributed.components.prepare_data.sources.source_files import source_states
from kfp_distributed.components.prepare_data.sources.stored_files import SourcePath
from kfp_distributed.components.prepare_data.split.strata import plan_strata
from kfp_distributed.components.prepare_data.writing.stored_shards import shard_stores, store_shards, take_shards
from kfp_distributed.components.prepare_data.writing.write import write_splits
from kfp_distributed.components.worker_pool.piece_tasks import run_here
from kfp_distributed.components.worker_pool.stored_tasks import Engine, StoredTasks
from kfp_distributed.components.worker_pool.task_scratch import step_tasks
from kfp_distributed.library.address_secrets import without_secrets
from kfp_distributed.reports.page import render_page
from kfp_distributed.storage.dataset import DatasetManifest


def prepare(
    source: str,
    options: Options,
    datasets: Mapping[str, Artifact],
    overview: str,
    sources_of_splits: Mapping[str, str] = MappingProxyType({}),
    engine: Engine | None = None,
) -> dict[str, DatasetManifest]:
    """Write the train, validation and test datasets and the overview of a source.

    With an engine, an s3:// or minio:// source is not downloaded: this process and the tasks read the ranges that they
    need. The outputs appear only when all of them are complete. If the artifacts are in an object store, the shards are
    stored beside them (`shards_uri`).

    Args:
        source: "digits", or path or address of the data.
        options: Options of reading and splitting.
        datasets: Output artifacts "train", "validation" and "test". Rows and classes are added to their metadata.
        overview: Path of the HTML page.
        sources_of_splits: Paths or addresses of rows of "validation" or "test" alone. Default: none.
        engine: Where the tasks run, with results that are equal to the last byte. Default: in this process.

    Returns:
        The manifest of each split.

    Raises:
        ValueError: The source or an option is wrong. No output is written.
        OSError: The source cannot be downloaded, or a dataset cannot be written.
        StorageError: The shards cannot be stored, or an object of the source cannot be read or was replaced.
    """
    _return_freed_memory()
    if engine and engine.has_other_machines:
        refuse_downloads([source, *sources_of_splits.values()])
    targets = {split: Path(dataset.path) for split, dataset in datasets.items()}
    parent = targets["train"].parent
    with shard_stores(datasets) as stores, tempfile.TemporaryDirectory(prefix="prepare-data-") as scratch:
        files = _opened({"source": source, **sources_of_splits}, Path(scratch), engine)
        # Beside the outputs, because their disk has place for the rows.
        with (
            disk_errors(parent, Path(scratch)),
            _folder(parent),
            tempfile.TemporaryDirectory(prefix=".prepare-data-", dir=parent) as unfinished,
            step_tasks(engine, (_states(files), options)) as tasks,
        ):
            folders = {split: Path(unfinished, split) for split in targets}
            for folder in folders.values():
                folder.mkdir()
            preparation = _Preparation(files, options, Path(scratch), Path(unfinished), folders, tasks)
            manifests, content = preparation.write(without_secrets(source))
            page = Path(unfinished, "overview")
            page.write_text(render_page("prepare_data.html", content), encoding="utf-8")
            manifests |= {
                split: take_shards(manifests[split], tasks.store, folder, stores.get(split))
                if tasks
                else store_shards(manifests[split], folder, stores[split])
                for split, folder in folders.items()
                if tasks or split in stores
            }
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


def _states(files: Mapping[str, SourcePath | None]) -> dict[str, list[tuple[str, int, int | str]]]:
    return {split: [*source_states(path)] if path else [] for split, path in files.items()}


def _return_freed_memory() -> None:
    """Let Arrow return freed memory to the system soon.

    With mimalloc, its default, a Parquet file of 2.5 million rows took 477 to 513 MB at its peak, and with jemalloc 402
    MB (benchmarks/large.md). Not every build of Arrow has jemalloc.
    """
    if "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())


@dataclass(frozen=True)
class _Preparation:
    """The way from the sources to the datasets in folders, or in the scratch of tasks.

    Attributes:
        files: File or folder of each source, None for the digits.
        options: Options of reading and splitting.
        scratch: Folder of what was downloaded or unpacked.
        unfinished: Folder for the rows.
        folders: Folder of each split.
        tasks: What runs tasks; None for this process.
    """

    files: Mapping[str, SourcePath | None]
    options: Options
    scratch: Path
    unfinished: Path
    folders: Mapping[str, Path]
    tasks: StoredTasks | None

    def write(self, name: str) -> tuple[dict[str, DatasetManifest], OverviewPage]:
        """Write the datasets, and return their manifests and the content of the overview.

        Args:
            name: Source of the data, for the manifests.
        """
        options, tasks = self.options, self.tasks
        run = tasks.run if tasks else run_here
        read = read_sources(self.files, options, self.scratch, self.unfinished, _log, tasks)
        # What was downloaded or unpacked takes more space than the rows, and is read no more.
        for path in self.scratch.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        is_like = options.like is not None
        warnings = [*scaling_warnings(read.scan.columns, is_like=is_like), *read.scan.warnings]
        _log(warnings)
        strata, counts = plan_strata(
            read.pieces, read.scan, read.split_by, options, read.fixed_splits, run, self.unfinished
        )
        _log(strata.warnings)
        with disk_errors(self.unfinished.parent, self.scratch, read.expected_bytes):
            manifests, profile = write_splits(
                read.pieces, read.scan, strata, counts, options, name, self.folders, run, tasks
            )
            if not tasks:
                read.pieces.delete_rows()
        train = manifests["train"]
        warnings_of_rows = [
            *leakage_warnings(profile.predictors, is_like=is_like),
            *duplicate_warnings(profile.duplicates, read.scan.collapsed),
            *unseen_warnings(profile.unseen, is_like=is_like),
            *_outlier_warnings(train, profile, is_like=is_like),
            *([] if options.like else log_scale_lines(train.columns)),
            *untrained_warnings(train.label.name, train.label.classes, train.class_counts),
        ]
        _log(warnings_of_rows)
        notes = [*read.notes, *strata.warnings, *warnings_of_rows, *warnings]
        return manifests, overview_page(manifests, profile, read.scan.missing, notes)


def _outlier_warnings(train: DatasetManifest, profile: Profile, *, is_like: bool) -> list[str]:
    sample = profile.sample
    lines = outlier_warnings(train.columns, sample.columns(train.columns), profile.moments, is_like=is_like)
    if train.label.task != "regression":
        return lines
    return [*label_outlier_warnings(train.label.name, sample.labels, profile.labels, is_like=is_like), *lines]


def _opened(sources: Mapping[str, str], scratch: Path, engine: Engine | None) -> dict[str, SourcePath | None]:
    """Return the path of each source, and download it if it is remote and no tasks read it; None for the digits."""
    files: dict[str, SourcePath | None] = {}
    for name, source in sources.items():
        folder = scratch / name
        folder.mkdir()
        split = "" if name == "source" else name
        if source == DIGITS:
            files[split] = None
        else:
            files[split] = stored_source(source) if engine and is_stored(source) else local_copy(source, folder)
    return files


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
