"""Measure time and memory of `prepare_data` by the number of rows, compared with a split of the same data in memory."""

import csv
import random
import sys
from pathlib import Path

from measure import Measured, measure, table

_PREPARE = """\
import sys
from pathlib import Path
from kfp_distributed.components.prepare_data.component import prepare_data
from kfp import dsl
folder = Path(sys.argv[2])
def artifact(kind, name):
    return kind(name=name, uri=str(folder / name), metadata={})
prepare_data(
    train_dataset=artifact(dsl.Dataset, "train"), validation_dataset=artifact(dsl.Dataset, "validation"),
    test_dataset=artifact(dsl.Dataset, "test"), overview=artifact(dsl.HTML, "overview"),
    source=sys.argv[1], label_column="label", shards=8,
)
"""

# The usual alternative: the complete table in memory, the split of scikit-learn, one Parquet file for each split.
_IN_MEMORY = """\
import sys
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.csv, pyarrow.parquet
from sklearn.model_selection import train_test_split
source, folder = sys.argv[1], Path(sys.argv[2])
if source.endswith(".npz"):
    data = np.load(source)
    features, labels = data["x"], data["label"]
    rows = pa.table({"x": pa.FixedSizeListArray.from_arrays(features.ravel(), features[0].size), "label": labels})
else:
    rows = pa.csv.read_csv(source)
labels = rows.column("label").to_numpy(zero_copy_only=False)
rest, test = train_test_split(np.arange(len(labels)), test_size=0.1, stratify=labels, random_state=0)
train, validation = train_test_split(rest, test_size=1 / 9, stratify=labels[rest], random_state=0)
folder.mkdir(parents=True)
for name, index in (("train", train), ("validation", validation), ("test", test)):
    pa.parquet.write_table(rows.take(np.sort(index)), folder / f"{name}.parquet")
"""


def prepare_table(folder: Path) -> str:
    """Return a table of `prepare_data` with the digits 10 and 100 times over, and with CSV files of up to 10^6 rows."""
    sources = {
        "digits x 10 (17,970 rows)": digits_file(folder / "digits-10.npz", 10),
        "digits x 100 (179,700 rows)": digits_file(folder / "digits-100.npz", 100),
        "CSV, 100,000 rows of 10 columns": _csv(folder / "100k.csv", 100_000),
        "CSV, 1,000,000 rows of 10 columns": _csv(folder / "1m.csv", 1_000_000),
    }
    rows = []
    for name, source in sources.items():
        prepared = measure([sys.executable, "-c", _PREPARE, source, folder / f"{source.stem}-ours"])
        in_memory = measure([sys.executable, "-c", _IN_MEMORY, source, folder / f"{source.stem}-in-memory"])
        rows.append([name, _text(prepared), _text(in_memory)])
    return table(["data", "prepare_data", "whole table in memory, scikit-learn's split"], rows)


def _text(run: Measured) -> str:
    return f"{run.seconds:.1f} s, {run.peak_mib:.0f} MiB"


def digits_file(file: Path, times: int) -> Path:
    """Write the digits dataset, repeated `times` times, to an .npz file."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = digits.images.astype(np.uint8).reshape(-1, 8, 8, 1)
    np.savez(file, x=np.tile(images, (times, 1, 1, 1)), label=np.tile(digits.target, times))
    return file


def _csv(file: Path, rows: int) -> Path:
    generator = random.Random(0)
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow([*(f"x{column}" for column in range(8)), "colour", "label"])
        for _ in range(rows):
            numbers = [f"{generator.gauss(0, 1):.5f}" for _ in range(8)]
            writer.writerow([*numbers, generator.choice(["red", "green", "blue"]), generator.choice("abc")])
    return file
