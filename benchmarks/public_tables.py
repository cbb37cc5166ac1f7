"""Compare the built-in trainer with scikit-learn on public tables."""

import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from kfp import dsl
from measure import header, installed, log, parser, table, write_page
from numpy.typing import NDArray
from prepared_data import artifact, prepare
from sklearn import datasets as public
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from kfp_distributed.components.evaluate.component import evaluate
from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.storage.dataset import read_batches
from kfp_distributed.trainers.runtime.data_loading.epoch_steps import read_manifest

_TEXT = """\
# Public tables beside scikit-learn

{header}

Tables that scikit-learn has or makes, written as CSV files with gaps and texts. Each is prepared and trained with the
defaults: `prepare_data(source, label_column="label")`, then `train` with `keras_classifier` in one process. All models
learn and are scored on the same rows. The score is the accuracy on the test rows, or R² where a number is predicted.

- *Rounds*: how many errors had to be followed until `prepare_data` accepted the table.
- *HistGradientBoosting* and *MLP*: scikit-learn's, with its defaults; the MLP on standardized inputs and target. Their
  seconds are those of `fit`, ours those of the whole `train` step with the start of its process.

{table}
"""
_SPLIT = {"validation_fraction": 0.1, "test_fraction": 0.3}


@dataclass(frozen=True)
class _Table:
    """A table.

    Attributes:
        columns: Its columns, with "label".
        fixes: Options that follow an error of `prepare_data`, in their order.
        has_header: Whether the file has the names of the columns.
    """

    columns: Mapping[str, Any]
    fixes: tuple[Mapping[str, Any], ...] = ()
    has_header: bool = True


def _bunch(load: Callable[..., Any], **options: object) -> _Table:
    found = load(**options)
    columns = dict(zip(map(str, found.feature_names), found.data.T, strict=True))
    names = [str(name) for name in getattr(found, "target_names", ())]
    return _Table({**columns, "label": [names[index] for index in found.target] if names else found.target})


def _skewed() -> _Table:
    """Amounts over six powers of ten, of which the label is a product."""
    random = np.random.default_rng(1)
    amounts = np.exp(random.normal(0, 2.5, (4000, 6)))
    label = np.log(amounts[:, 0] * amounts[:, 1] / amounts[:, 2]) + random.normal(0, 0.5, 4000)
    return _Table({**{f"amount {i}": values for i, values in enumerate(amounts.T)}, "label": label})


def _people() -> _Table:
    """Numbers and texts with gaps, of which both decide the class."""
    random = np.random.default_rng(2)
    age, hours = random.integers(17, 90, 4000), random.normal(40, 12, 4000).round()
    sector = random.choice(["private", "state", "own", "none"], 4000, p=[0.6, 0.2, 0.15, 0.05])
    degree = random.choice(["school", "bachelor", "master", "doctor"], 4000, p=[0.5, 0.3, 0.15, 0.05])
    gain = age / 20 + hours / 20 + 2 * (degree == "master") + 4 * (degree == "doctor") + (sector == "own")
    label = np.where(gain + random.normal(0, 1, 4000) > 6, ">50K", "<=50K")
    gaps = random.random((2, 4000)) < 0.1
    columns = {"age": pa.array(age, mask=gaps[0]), "sector": pa.array(sector, mask=gaps[1])}
    return _Table({**columns, "hours": hours, "degree": degree, "label": label})


def _without_names() -> _Table:
    """The same rows in a file without the names of the columns, as the archive of UCI has tables."""
    fix = {"csv_format": {"header": False}, "label_column": "column_5"}
    return _Table(_people().columns, (fix,), has_header=False)


def _sales() -> _Table:
    """Amounts that grow with the time, on days that can be read in two ways."""
    random = np.random.default_rng(3)
    months, days = random.integers(1, 13, 3000), random.integers(1, 13, 3000)
    size = random.normal(10, 3, 3000)
    label = size * (1 + months / 6) + random.normal(0, 1, 3000)
    day = [f"{day}/{month}/2024" for day, month in zip(days, months, strict=True)]
    return _Table({"sold on": day, "size": size, "label": label}, ({"columns": {"sold on": "date %d/%m/%Y"}},))


def _friedman() -> _Table:
    inputs, label = public.make_friedman1(3000, noise=1.0, random_state=4)
    return _Table({**{f"x{i}": values for i, values in enumerate(inputs.T)}, "label": label})


def _tables() -> dict[str, _Table]:
    return {
        "iris": _bunch(public.load_iris),
        "wine": _bunch(public.load_wine),
        "breast cancer": _bunch(public.load_breast_cancer),
        "digits": _bunch(public.load_digits),
        "diabetes": _bunch(public.load_diabetes, scaled=False),
        "friedman": _friedman(),
        "people, with gaps and texts": _people(),
        "people, without names of columns": _without_names(),
        "sales, with days such as 1/5/2024": _sales(),
        "skewed amounts": _skewed(),
    }


def _prepare(rows: _Table, folder: Path) -> int:
    """Prepare a table, and return the number of the errors that had to be followed."""
    written = pyarrow.csv.WriteOptions(include_header=rows.has_header)
    pyarrow.csv.write_csv(pa.table(dict(rows.columns)), folder / "table.csv", written)
    options: dict[str, Any] = {"split": _SPLIT}
    for rounds, fix in enumerate([{}, *rows.fixes]):
        options |= fix
        try:
            prepare(folder, folder / "table.csv", **options)
        except SystemExit:
            if rounds == len(rows.fixes):
                raise
        else:
            return rounds
    raise AssertionError


def _train(folder: Path) -> str:
    """Train on a prepared table, and return the score on its test rows and the seconds of the training."""
    request = Request(
        train_uri=f"{folder}/train",
        model_uri=f"{folder}/model",
        train_specification={"trainer": "keras_classifier"},
        distribution_specification={"distribution_type": "Job"},
        identity=(str(folder),),
    )
    started = time.monotonic()
    launch(request, LocalRunner(), lambda entry: None)
    seconds = time.monotonic() - started
    score, _ = evaluate(
        artifact(dsl.Model, folder / "model"),
        artifact(dsl.Dataset, folder / "test"),
        artifact(dsl.Metrics, folder / "metrics"),
        artifact(dsl.ClassificationMetrics, folder / "classification_metrics"),
        artifact(dsl.HTML, folder / "report"),
    )
    return f"{score:.3f}, {seconds:.1f} s"


def _rows(folder: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    inputs, labels = zip(*read_batches(folder, read_manifest(str(folder))), strict=True)
    return np.concatenate(inputs), np.concatenate(labels)


def _scikit_learn(kind: Any, train: Any, test: Any) -> str:  # noqa: ANN401
    """Return the score and the seconds of an estimator of scikit-learn."""
    started = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        kind.fit(*train)
    seconds = time.monotonic() - started
    return f"{kind.score(*test):.3f}, {seconds:.1f} s"


def _compared(name: str, rows: _Table) -> list[str]:
    """Return the cells of a table."""
    with tempfile.TemporaryDirectory() as temporary, redirect_stdout(StringIO()):
        folder = Path(temporary)
        rounds, ours = _prepare(rows, folder), _train(folder)
        manifest = read_manifest(f"{folder}/train")
        train, test = (_rows(folder / split) for split in ("train", "test"))
    is_regression, scaled = manifest.label.task == "regression", [train, test]
    if is_regression:
        mean, deviation = train[1].mean(), train[1].std()
        boosting, network = HistGradientBoostingRegressor(random_state=0), MLPRegressor(random_state=0)
        scaled = [(inputs, (labels - mean) / deviation) for inputs, labels in (train, test)]
    else:
        boosting, network = HistGradientBoostingClassifier(random_state=0), MLPClassifier(random_state=0)
    trees = _scikit_learn(boosting, train, test)
    filled = [(np.nan_to_num(inputs), labels) for inputs, labels in scaled]
    perceptron = _scikit_learn(make_pipeline(StandardScaler(), network), *filled)
    size = f"{len(rows.columns['label']):,} x {len(manifest.columns)}"
    cells = [name, size, "R²" if is_regression else "accuracy", ours, trees, perceptron, str(rounds)]
    log(" | ".join(cells))
    return cells


def main() -> None:
    """Measure, print the table and write the page."""
    arguments = parser(__doc__, "public_tables.md")
    arguments.add_argument("--table", action="append", help="only this table, by its name; repeatable")
    options = arguments.parse_args()
    rows = [_compared(name, found) for name, found in _tables().items() if name in (options.table or [name])]
    columns = ["table", "rows and inputs", "score", "keras_classifier", "HistGradientBoosting", "MLP", "rounds"]
    first = header("bench-public-tables", installed("scikit-learn", "tensorflow"), "columns")
    write_page(options.page, _TEXT.format(header=first, table=table(columns, rows)))


if __name__ == "__main__":
    main()
