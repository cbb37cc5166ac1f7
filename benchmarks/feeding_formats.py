"""Converts the rows of `feeding.py` to the format of a library that reads no Parquet from an object store.

Arguments: the library, the folder of the Parquet shards, the new folder. Runs in the environment of the library.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

CHUNK_BYTES = 4_000_000
"""Size of a file: 10 files, about as many as there are shards."""


def rows_of(shard: str) -> Iterator[dict[str, object]]:
    """Yield the rows of a shard: 64 float32 and the label."""
    table = pq.read_table(shard)
    labels = table.column("label").to_numpy()
    inputs = table.column("x").combine_chunks()
    while hasattr(inputs, "flatten") and inputs.type.num_fields:
        inputs = inputs.flatten()
    values = inputs.to_numpy().reshape(len(labels), -1).astype(np.float32)
    for row, label in zip(values, labels.tolist(), strict=True):
        yield {"x": row, "label": label}


def write_litdata(shards: list[str], folder: str) -> None:
    """Write the format of LitData."""
    from litdata import optimize

    optimize(rows_of, shards, folder, chunk_bytes=CHUNK_BYTES, num_workers=1, verbose=False)


def write_mosaicml(shards: list[str], folder: str) -> None:
    """Write the format MDS of MosaicML Streaming."""
    from streaming import MDSWriter

    columns = {"x": "ndarray:float32:64", "label": "int"}
    with MDSWriter(out=folder, columns=columns, size_limit=CHUNK_BYTES) as writer:
        for shard in shards:
            for row in rows_of(shard):
                writer.write(row)


if __name__ == "__main__":
    library, source, target = sys.argv[1:]
    write = {"litdata": write_litdata, "mosaicml": write_mosaicml}[library]
    write([str(path) for path in sorted(Path(source).rglob("*.parquet"))], target)
