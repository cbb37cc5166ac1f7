"""Compare the built-in trainer with scikit-learn on public tables, and write benchmarks/public_tables.md."""

import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from measure import table
from numpy.typing import NDArray
from sklearn import datasets as public
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from kfp_distributed.components.predict.prediction import run_prediction
from kfp_distributed.components.predict.prediction_request import parse_request
from kfp_distributed.components.prepare_data.preparation_options import parse_options
from kfp_distributed.components.prepare_data.prepare import prepare
from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.request import Request
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.storage.dataset import DatasetManifest, read_batches

_PAGE = Path(__file__).with_suffix(".md")
_TEXT = """\
# Public tables beside scikit-learn

`make bench-public-tables` runs these measurements and writes this page. Latest run: {day}, Python {python},
scikit-learn {sklearn}, 2 cores of a shared machine. Compare the columns of one run, not different runs.

Tables that scikit-learn has or makes, written as CSV files with gaps and texts. Each is prepared and trained with the
defaults: `prepare_data(source, label_column="label")`, then `train` with `keras_classifier` in one process. All models
learn and are scored on the same rows. The score is the accuracy on the test rows, or R² where a number is predicted.

- *Rounds*: how many errors had to be followed until `prepare_data` accepted the table.
- *HistGradientBoosting* and *MLP*: scikit-learn's, with its defaults; the MLP on standardized inputs and target. Their
  seconds are those of `fit`, ours those of the whole `train` step with the start of its process.

{rows}
"""


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


def _prepare(rows: _Table, folder: Path) -> tuple[dict[str, DatasetManifest], int]:
    """Prepare a table, and return the datasets and the number of the errors that had to be followed."""
    written = pyarrow.csv.WriteOptions(include_header=rows.has_header)
    pyarrow.csv.write_csv(pa.table(dict(rows.columns)), folder / "table.csv", written)
    places = {split: str(folder / split) for split in ("train", "validation", "test")}
    datasets = {split: SimpleNamespace(path=place, uri=place, metadata={}) for split, place in places.items()}
    settings: dict[str, Any] = {"label_column": "label", "validation_fraction": 0.1, "test_fraction": 0.3, "shards": 8}
    settings |= {"seed": 0, "image_size": "", "drop_columns": ()}
    for rounds, fix in enumerate([{}, *rows.fixes]):
        settings |= fix
        options = parse_options(**settings)
        try:
            return prepare(str(folder / "table.csv"), options, datasets, str(folder / "overview.html")), rounds
        except ValueError:
            if rounds == len(rows.fixes):
                raise
    raise AssertionError


def _train(folder: Path, parameters: Mapping[str, Any]) -> float:
    """Train on a prepared table, and return the seconds."""
    request = Request(
        train_uri=f"{folder}/train",
        model_uri=f"{folder}/model",
        train_specification={"trainer": "keras_classifier"},
        train_parameters=dict(parameters),
        distribution_specification={"distribution_type": "Job"},
        identity=(str(folder),),
    )
    started = time.monotonic()
    launch(request, LocalRunner(), lambda entry: None)
    return time.monotonic() - started


def _predictions(folder: Path) -> list[Any]:
    """Return the answer for each test row, in their order."""
    request = parse_request(
        model=None,
        model_uri=f"{folder}/model",
        dataset=f"{folder}/test",
        source="",
        key_columns=[],
        csv_format={},
        on_bad_row="refuse",
        probabilities=False,
    )
    run_prediction(request, SimpleNamespace(path=f"{folder}/predictions", uri="", metadata={}))  # type: ignore[arg-type]
    parts = sorted((folder / "predictions").glob("*.parquet"))
    answers: list[Any] = pq.read_table(parts, columns=["prediction"])["prediction"].to_pylist()
    return answers


def _rows(folder: Path, manifest: DatasetManifest) -> tuple[NDArray[Any], NDArray[Any]]:
    inputs, labels = zip(*read_batches(folder, manifest), strict=True)
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
    with tempfile.TemporaryDirectory() as temporary, redirect_stdout(StringIO()):
        folder = Path(temporary)
        manifests, rounds = _prepare(rows, folder)
        seconds = _train(folder, {})
        label = manifests["train"].label
        train, test = (_rows(folder / split, manifests[split]) for split in ("train", "test"))
        answers = _predictions(folder)
        if label.task == "regression":
            score = r2_score(test[1], answers)
            scale = (train[1].mean(), train[1].std())
            boosting, network = HistGradientBoostingRegressor(random_state=0), MLPRegressor(random_state=0)
            scaled = [(inputs, (labels - scale[0]) / scale[1]) for inputs, labels in (train, test)]
        else:
            score = accuracy_score([label.classes[index] for index in test[1]], answers)
            boosting, network = HistGradientBoostingClassifier(random_state=0), MLPClassifier(random_state=0)
            scaled = [train, test]
        trees = _scikit_learn(boosting, train, test)
        filled = [(np.nan_to_num(inputs), labels) for inputs, labels in scaled]
        perceptron = _scikit_learn(make_pipeline(StandardScaler(), network), *filled)
    kind = "R²" if label.task == "regression" else "accuracy"
    size = f"{len(rows.columns['label']):,} x {len(manifests['train'].columns)}"
    return [name, size, kind, f"{score:.3f}, {seconds:.1f} s", trees, perceptron, str(rounds)]


def main() -> None:
    """Run the benchmark from the command line. Arguments are names of tables; default: all."""
    chosen = {name: rows for name, rows in _tables().items() if name in sys.argv[1:] or not sys.argv[1:]}
    headings = ["table", "rows and inputs", "score", "keras_classifier", "HistGradientBoosting", "MLP", "rounds"]
    rows = table(headings, [_compared(name, found) for name, found in chosen.items()])
    print(rows)
    if not sys.argv[1:]:
        text = _TEXT.format(
            day=date.today().isoformat(), python=sys.version.split()[0], sklearn=version("scikit-learn"), rows=rows
        )
        _PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
