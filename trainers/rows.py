"""The rows of a rank as a stream of batches, for training functions.

The order of the rows depends on the seed and the epoch alone, so that a resumed training sees the rows that it would
have seen. Memory and local disk are bounded, whatever the size of the dataset.
"""

import os
from collections.abc import Iterator
from contextlib import closing
from functools import lru_cache
from itertools import repeat
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.storage.dataset import DATASET_MANIFEST, DatasetManifest, parts_of_rank
from kfp_distributed.storage.opener import open_store
from kfp_distributed.trainers.runtime.data_loading.rank_part import read_part
from kfp_distributed.trainers.runtime.data_loading.row_feed import RowFeed, cache_bytes
from kfp_distributed.trainers.runtime.data_loading.row_records import exact_labels
from kfp_distributed.trainers.runtime.data_loading.row_stream import RowSource, batches
from kfp_distributed.trainers.runtime.job_description import STORE_SECONDS


def rows(
    train_dir: str | Path, batch_size: int, seed: int = 0, epoch: int = 0, *, skipped: int = 0
) -> Iterator[tuple[NDArray[np.float32], NDArray[Any]]]:
    """Return the rows of this rank once, in random order. The next rows are read while some are used.

    Args:
        train_dir: The folder `train_dir` of a training function. With the key `rows` = "stream" of its
            `train_specification`, the rows come from the object store while it trains; otherwise from the Parquet
            files in the folder.
        batch_size: Rows of a batch. The last one may have fewer.
        seed: Seed of the order, at least 0. Default: 0.
        epoch: Number of the epoch, at least 0. Each has another order. Default: 0.
        skipped: Rows to leave out at the beginning, such as those that a resumed epoch has trained already. They are
            not read. Default: 0.

    Returns:
        For each batch the inputs, float32 [n, width], and the labels [n]: class indices as int32, or numbers to predict
        as float64. Columns are in the order of the manifest: a category is its index, and a missing number NaN.

    Raises:
        ValueError: An argument is out of range. The dataset has no label, or a column without a form as numbers, such
            as a text: read the Parquet files in train_dir instead.
        StorageError: The rows cannot be read.
    """
    for name, value, least in (
        ("batch_size", batch_size, 1),
        ("seed", seed, 0),
        ("epoch", epoch, 0),
        ("skipped", skipped, 0),
    ):
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} is {value!r}; allowed is a whole number of {least} or more")
    folder = Path(train_dir).absolute()
    # The text of the manifest is part of the key, because another training may use the same folder.
    feed, count, dtype = _feed(str(folder), (folder / DATASET_MANIFEST).read_text(), seed)
    if skipped > count:
        raise ValueError(f"skipped is {skipped}; allowed is 0 to {count}, the rows of this rank")
    return _batches(feed, dtype, batch_size, epoch, skipped) if skipped < count else iter(())


def _batches(
    feed: RowFeed, dtype: type, batch_size: int, epoch: int, skipped: int
) -> Iterator[tuple[NDArray[np.float32], NDArray[Any]]]:
    with closing(feed.windows(epoch, skipped, 1)) as windows:
        for batch in batches(windows, repeat(batch_size)):
            yield np.ascontiguousarray(batch[:, :-2]), exact_labels(batch).astype(dtype)


@lru_cache(maxsize=1)
def _feed(folder: str, text: str, seed: int) -> tuple[RowFeed, int, type]:
    """Return the rows of the rank, their number, and the type of the labels.

    It is kept for the next epoch, because it knows the row groups of the shards, and has the cache.
    """
    manifest = DatasetManifest.from_json(text)
    part, parts = read_part(Path(folder))
    own = parts_of_rank(manifest, part, parts) if parts else ()
    store = open_store(manifest.shards_uri or folder, retry_seconds=STORE_SECONDS)
    source = RowSource(store, manifest, own, has_exact_labels=True)
    # Shards in the local folder need no copy.
    cache = cache_bytes(os.environ) if manifest.shards_uri else 0
    dtype = np.int32 if manifest.label.classes else np.float64
    return RowFeed(source, seed, 0, cache), sum(shard.rows for shard in own), dtype
