"""The data page and the evaluation page of two datasets: the digits, and a table with every problem of data."""

import csv
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from kfp_distributed.components.evaluate import regression
from kfp_distributed.components.evaluate.classification import score_rows
from kfp_distributed.components.evaluate.evaluation import read_dataset
from kfp_distributed.components.evaluate.pages.classification_report import evaluation_page
from kfp_distributed.components.evaluate.pages.regression_report import regression_page
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.prepare import prepare
from kfp_distributed.reports.page import render_page
from kfp_distributed.storage.dataset import Column, DatasetManifest, Label, Shard, read_batches
from kfp_distributed.storage.tensor_specs import STRING, Signature, TensorSpec

COLUMNS = (
    "species", "bill_length", "flipper_length", "body_mass", "island", "sex", "ring_color", "station", "ship_cost",
)  # fmt: skip
SPECIES = ("adelie", "chinstrap", "gentoo")


def write_table(file: Path, rows: int = 2000) -> None:
    """Write a CSV file of made-up penguins.

    It has missing values, a constant column ("station"), a column that predicts the label ("ring_color"), outliers
    and duplicate rows.
    """
    generator = np.random.default_rng(0)
    table = []
    for _ in range(rows):
        species = int(generator.integers(3))
        bill = generator.normal((38.8, 48.8, 47.5)[species], 2.8)
        flipper = generator.normal((190, 196, 217)[species], 6.5)
        mass = generator.normal((3700, 3730, 5070)[species], 400)
        home = species if generator.random() < 0.6 else int(generator.integers(3))
        table.append(
            [
                SPECIES[species],
                "" if generator.random() < 0.15 else f"{bill:.1f}",
                f"{flipper:.0f}",
                "" if generator.random() < 0.04 else f"{mass:.0f}",
                ("Torgersen", "Dream", "Biscoe")[home],
                "" if generator.random() < 0.08 else ("female", "male")[generator.integers(2)],
                ("red", "green", "blue")[species if generator.random() > 0.01 else 0],
                1,
                f"{np.exp(generator.normal(9, 1.4)):.2f}",
            ]
        )
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([COLUMNS, *table, *table[:60]])


@cache
def write_pages(folder: Path) -> dict[str, Path]:
    """Write the pages into a folder. Return their files by name."""
    write_table(folder / "penguins.csv")
    files = {}
    for name, source, options, ignored in (
        ("digits", "digits", Options(), ()),
        ("table", str(folder / "penguins.csv"), Options("species"), ("ring_color", "ship_cost")),
    ):
        files[f"data-{name}"], files[f"evaluation-{name}"] = (
            folder / f"{page}-{name}.html" for page in ("data", "evaluation")
        )
        datasets = {
            split: SimpleNamespace(path=str(folder / name / split), uri=str(folder / name / split), metadata={})
            for split in ("train", "validation", "test")
        }
        prepare(source, options, datasets, str(files[f"data-{name}"]))
        files[f"evaluation-{name}"].write_text(evaluation_report(folder / name, ignored), encoding="utf-8")
    files["evaluation-regression"] = folder / "evaluation-regression.html"
    files["evaluation-regression"].write_text(regression_report(folder / "houses"), encoding="utf-8")
    return files


def regression_report(folder: Path, rows: int = 5000) -> str:
    """Write a dataset of made-up houses, and predict their prices badly for large ones. Return the report."""
    generator = np.random.default_rng(0)
    size = generator.lognormal(4.6, 0.4, rows).astype(np.float32)
    price = 90_000 + 3_100 * size.astype(np.float64) + generator.normal(0, 300 * size)
    folder.mkdir()
    pq.write_table(pa.table({"size": size, "price": price}), folder / "part.parquet")
    label = Label("price", (), "regression", float(price.mean()), float(price.std()))
    shards = (Shard("part.parquet", rows, 1, "0"),)
    manifest = DatasetManifest("test", (Column("size", "number", "float32"),), label, shards, (), 0, "made up")
    evaluation = regression.score_rows(lambda rows: 400_000 * np.log(rows[:, 0] / 38), folder, manifest)
    return render_page(
        "evaluate_regression.html", regression_page(manifest, evaluation, signature_of(manifest, "prediction", 1))
    )


def evaluation_report(folder: Path, ignored: tuple[str, ...]) -> str:
    """Train a weak classifier on the training split, without the ignored columns. Return its report."""
    train, test = (read_dataset(folder / split) for split in ("train", "test"))
    kept = [index for index, column in enumerate(train.columns) if column.name not in ignored]
    inputs = slice(None) if len(train.columns) == 1 else kept
    batches = list(read_batches(folder / "train", train))
    rows, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    classifier = make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression(C=0.003, max_iter=500))
    classifier.fit(rows[:, inputs], labels)
    evaluation = score_rows(lambda features: classifier.predict_proba(features[:, inputs]), folder / "test", test)
    return render_page(
        "evaluate.html", evaluation_page(test, evaluation, signature_of(test, "probabilities", len(test.label.classes)))
    )


def signature_of(manifest: DatasetManifest, output: str, size: int) -> Signature:
    """Return the signature of a model that takes the columns by name."""
    inputs = [
        TensorSpec(column.name, STRING if column.vocabulary else "float32", (None, *column.shape))
        for column in manifest.columns
    ]
    return Signature.of(inputs, [TensorSpec(output, "float32", (None, size))])
