"""The ways of `feeding.py` to read rows. Runs one of them in a process of its own and prints the measurements as JSON.

Arguments: the way, the number of rows, the address of the bucket, which has the Parquet shards in data/ and the format
of LitData in litdata/. The working directory is an empty folder. `convert SHARDS FOLDER` writes that format.
"""

import contextlib
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

    from kfp_distributed.trainers.runtime.data_loading.row_feed import RowFeed

BATCH, EPOCHS, SECONDS, BUFFER = 256, 3, 10, 10_000
"""Rows of a batch, number of later epochs, seconds after which no further epoch begins, and rows of the shuffle buffer
of `datasets`."""

_CHUNK_BYTES = 4_000_000
"""Size of a file of LitData: 10 files, about as many as there are shards."""

_IMPORTS = {"datasets": ["datasets", "pyarrow.parquet"], "litdata": ["litdata"]}
"""Modules that the ways of other libraries import before the measurement."""

_OWN_IMPORTS = [
    "pyarrow.parquet",
    "kfp_distributed.trainers.runtime.data_loading.epoch_steps",
    "kfp_distributed.trainers.runtime.data_loading.row_feed",
]
"""Those of the other ways."""

Batches = Iterator[tuple[Any, Any]]
"""Inputs, a float32 tensor [BATCH, 64], and labels [BATCH]."""

Epoch = Callable[[int], float]
"""Takes a number of batches, and returns the sum of their numbers."""


def tensorflow_way(way: str, bucket: str, stack: ExitStack) -> Epoch:
    """Open a way to read rows with tf.data. A graph takes the batches, as the steps of Keras do."""
    import tensorflow as tf

    iterator = iter(dataset(way, bucket, stack))

    @tf.function(autograph=False)
    def take(count: tf.Tensor) -> tf.Tensor:
        def body(number: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            inputs, labels, *_ = next(iterator)
            return number + 1, total + tf.reduce_sum(inputs) + tf.reduce_sum(labels)

        return tf.while_loop(lambda number, _: number < count, body, (0, 0.0), parallel_iterations=1)[1]

    return lambda count: float(take(tf.constant(count)))


def dataset(way: str, bucket: str, stack: ExitStack) -> "tf.data.Dataset":
    """Return the tf.data.Dataset of a way."""
    import tensorflow as tf

    if way == "stream":
        from kfp_distributed.trainers.runtime.data_loading.row_dataset import dataset_of_rows

        return dataset_of_rows(open_stream(bucket, stack), 64, BATCH)
    records = np.array(download_records(bucket))
    arrays = np.ascontiguousarray(records[:, :-2]), records[:, -2].copy(), records[:, -1].copy()
    count = len(records)
    del records
    if way == "gathered":
        return gathered(arrays, count)
    slices = tf.data.Dataset.from_tensor_slices(arrays)
    if way == "shuffled":
        slices = slices.shuffle(count, 0)
    return slices.repeat().batch(BATCH, drop_remainder=True).prefetch(2)


def gathered(arrays: tuple[np.ndarray, ...], count: int) -> "tf.data.Dataset":
    """Return a tf.data.Dataset that takes whole batches from arrays, in a new random order in each epoch."""
    import tensorflow as tf

    tensors = [tf.constant(array) for array in arrays]
    numbers = tf.data.Dataset.range(2**62).flat_map(
        lambda epoch: tf.data.Dataset.from_tensors(
            tf.argsort(tf.random.stateless_uniform([count], tf.stack([0, tf.cast(epoch, tf.int32)])))
        )
    )
    batches = numbers.rebatch(BATCH, drop_remainder=True)
    return batches.map(lambda rows: tuple(tf.gather(tensor, rows) for tensor in tensors)).prefetch(2)


def torch_way(way: str, bucket: str, stack: ExitStack) -> Epoch:
    """Open a way to read rows with PyTorch."""
    batches = {"stream": stream, "mapped": mapped, "datasets": datasets, "litdata": litdata}
    iterator = batches[way](bucket, stack)

    def take(count: int) -> float:
        total = 0.0
        for _ in range(count):
            inputs, labels = next(iterator)
            assert inputs.shape == (BATCH, 64), inputs.shape
            total += float(inputs.sum() + labels.sum())
        return total

    return take


def stream(bucket: str, stack: ExitStack) -> Batches:
    """Read rows as `torch_classifier` does."""
    import torch

    from kfp_distributed.trainers.runtime.data_loading.row_stream import batches

    for records in batches(open_stream(bucket, stack).windows(0, 0), repeat(BATCH)):
        values = torch.from_numpy(records)
        yield values[:, :-2], values[:, -2]


def mapped(bucket: str, stack: ExitStack) -> Batches:
    """Download the rows, and select the rows of each batch from a memory-mapped array."""
    import torch

    records, epoch = download_records(bucket), 0
    while True:
        order = np.random.default_rng((0, epoch)).permutation(len(records))
        for start in range(0, len(order) // BATCH * BATCH, BATCH):
            values = torch.from_numpy(records[order[start : start + BATCH]])
            yield values[:, :-2], values[:, -2]
        epoch += 1


def datasets(bucket: str, stack: ExitStack) -> Batches:
    """Stream the Parquet shards with Hugging Face `datasets`."""
    from datasets import load_dataset

    options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
    files = f"{bucket}/data/**/*.parquet"
    rows = load_dataset("parquet", data_files=files, split="train", streaming=True, storage_options=options)
    rows, epoch = rows.shuffle(seed=0, buffer_size=BUFFER).with_format("torch"), 0
    while True:
        rows.set_epoch(epoch)
        for batch in rows.iter(BATCH, drop_last_batch=True):
            yield batch["x"].reshape(BATCH, -1).float(), batch["label"]
        epoch += 1


def litdata(bucket: str, stack: ExitStack) -> Batches:
    """Stream the format of LitData."""
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    # Its client for S3 only accepts servers with TLS, and there is no public setting for it.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    # By default, LitData leaves 50 GB of the disk free.
    rows = StreamingDataset(f"{bucket}/litdata", cache_dir="cache", shuffle=True, max_cache_size="10GB")
    loader = StreamingDataLoader(rows, batch_size=BATCH, drop_last=True, num_workers=0)
    while True:
        for batch in loader:
            yield batch["x"], batch["label"]


def rows_of(shard: str) -> Iterator[dict[str, object]]:
    """Yield the rows of a shard: 64 float32 and the label."""
    import pyarrow.parquet as pq

    table = pq.read_table(shard)
    labels = table.column("label").to_numpy()
    inputs = table.column("x").combine_chunks()
    while hasattr(inputs, "flatten") and inputs.type.num_fields:
        inputs = inputs.flatten()
    values = inputs.to_numpy().reshape(len(labels), -1).astype(np.float32)
    for row, label in zip(values, labels.tolist(), strict=True):
        yield {"x": row, "label": label}


def convert(source: str, folder: str) -> None:
    """Write the format of LitData from Parquet shards, which it cannot read from an object store."""
    from litdata import optimize

    shards = [str(path) for path in sorted(Path(source).rglob("*.parquet"))]
    optimize(rows_of, shards, folder, chunk_bytes=_CHUNK_BYTES, num_workers=1, verbose=False)


def open_stream(bucket: str, stack: ExitStack) -> "RowFeed":
    """Open the stream of the built-in trainers."""
    from kfp_distributed.storage.dataset import parts_of_rank
    from kfp_distributed.storage.shards import fetch_manifest
    from kfp_distributed.trainers.runtime.data_loading.row_feed import open_rows

    manifest = fetch_manifest(f"{bucket}/data")
    return stack.enter_context(open_rows(f"{bucket}/data", manifest, parts_of_rank(manifest, 0, 1), 0))


def download_records(bucket: str) -> np.ndarray:
    """Download the shards and write their rows to a file. Return it as a memory-mapped array [rows, 66]."""
    from kfp_distributed.storage.dataset import read_batches
    from kfp_distributed.storage.shards import fetch_shards

    manifest = fetch_shards(f"{bucket}/data", Path("data"))
    with Path("records").open("wb") as stream:
        for inputs, labels in read_batches(Path("data"), manifest):
            stream.write(np.column_stack([inputs, labels, np.ones(len(labels))]).astype("<f4").tobytes())
    return np.memmap("records", "<f4", "r").reshape(-1, 66)


def memory_mib(field: str) -> float:
    """Return VmRSS or VmHWM of this process in MiB."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def disk_bytes() -> int:
    """Return the bytes of the files in the working directory, and of open files without a name."""
    states = [path.stat() for path in Path().rglob("*") if path.is_file()]
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            # Shared memory is such a file, too, in another folder.
            if str(link.readlink()).startswith(f"{Path.cwd()}/") and stat.S_ISREG(link.stat().st_mode):
                states.append(link.stat())
    # A file that is mapped is open more than once.
    return sum({state.st_ino: state.st_size for state in states}.values())


def main(name: str, rows: int, bucket: str) -> None:
    """Measure one way."""
    (framework, way), steps = name.split("."), rows // BATCH
    __import__({"tf": "tensorflow", "torch": "torch"}[framework])
    for module in _IMPORTS.get(way, _OWN_IMPORTS):
        __import__(module)
    imported = memory_mib("VmRSS")
    opened = {"tf": tensorflow_way, "torch": torch_way}[framework]
    with ExitStack() as stack, contextlib.redirect_stdout(sys.stderr):
        started = time.perf_counter()
        take = opened(way, bucket, stack)
        total = take(1)
        first_batch = time.perf_counter() - started
        total += take(steps - 1)
        first_epoch = time.perf_counter() - started
        begin, epochs, later = time.perf_counter(), 0, 0.0
        while epochs < EPOCHS and later < SECONDS:
            total += take(steps)
            epochs, later = epochs + 1, time.perf_counter() - begin
        result = {
            "first_epoch": steps * BATCH / first_epoch,
            "later_epochs": epochs * steps * BATCH / later,
            "first_batch": first_batch,
            "peak_mib": memory_mib("VmHWM"),
            "reader_mib": memory_mib("VmHWM") - imported,
            "disk_mib": disk_bytes() / 2**20,
            # The same for all ways, if they read the same rows.
            "mean": total / ((epochs + 1) * steps * BATCH),
        }
    print(json.dumps(result), flush=True)
    # As trainers end: the end of the interpreter may wait forever for an iterator of tf.data.
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "convert":
        convert(*sys.argv[2:])
    else:
        main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
