"""The step's one flow: fetch, look, plan, write, show."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kfp_distributed.components.prepare_data.fetch import local_copy, shown
from kfp_distributed.components.prepare_data.overview import render_overview, sample_images
from kfp_distributed.components.prepare_data.plan import Options, plan_split
from kfp_distributed.components.prepare_data.sources import open_source
from kfp_distributed.components.prepare_data.split import scan, write_splits
from kfp_distributed.storage.dataset import DatasetManifest


def prepare(source: str, options: Options, datasets: Mapping[str, Any], overview: str) -> dict[str, DatasetManifest]:
    """Write the train, validation and test datasets and the overview of a source.

    Everything is written beside its place and moved there when all of it is whole.

    Args:
        source: "digits", or the path or address of the data.
        options: How to read and split it.
        datasets: KFP artifacts "train", "validation" and "test", whose path and metadata are used.
        overview: Where the HTML page goes.

    Returns:
        The manifest of each split.

    Raises:
        ValueError: The source or an option is not right; nothing has been written then.
        OSError: The source cannot be fetched, or a dataset not written.
    """
    with tempfile.TemporaryDirectory(prefix="prepare-data-") as scratch:
        path = None if source == "digits" else local_copy(source, Path(scratch))
        data = open_source(path, options, Path(scratch))
        columns, label, class_counts, remarks = scan(data)
        for remark in remarks:
            print(remark, flush=True)
        plan = plan_split(class_counts, options)
        places = {split: Path(dataset.path) for split, dataset in datasets.items()}
        beside = places["train"].parent
        beside.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".prepare-data-", dir=beside) as unfinished:
            folders = {split: Path(unfinished, split) for split in places}
            for folder in folders.values():
                folder.mkdir()
            manifests, moments = write_splits(data, columns, label, plan, options, shown(source), folders)
            page = Path(unfinished, "overview")
            images = sample_images(folders["train"], manifests["train"])
            page.write_text(render_overview(manifests, moments, images, remarks), encoding="utf-8")
            for split, place in places.items():
                shutil.rmtree(place, ignore_errors=True)
                folders[split].replace(place)
            page.replace(overview)
    for split, manifest in manifests.items():
        datasets[split].metadata.update(rows=manifest.rows, classes=len(manifest.label.classes))
        shards = len(manifest.shards)
        print(f"{split}: {manifest.rows:,} rows in {shards} shard{'s' * (shards != 1)}", flush=True)
    return manifests
