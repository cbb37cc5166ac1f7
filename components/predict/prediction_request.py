"""The checked parameters of the step (pure)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kfp_distributed.components.prepare_data.csv_format import CsvFormat, parse_csv_format
from kfp_distributed.library.address_secrets import without_secrets

OUTPUT_COLUMNS = ("prediction", "probability", "probabilities")
"""Names of the columns of the output beside the keys."""


@dataclass(frozen=True)
class PredictionRequest:
    """The step's checked parameters.

    Attributes:
        model: Folder of the model; "" if it is to be downloaded.
        model_uri: Address of the model.
        is_artifact: Whether the model is the input `model`, which may lack model.json.
        dataset: Folder of the dataset.json; "" for a source.
        source: Path or address of a table; "" for a dataset.
        key_columns: Columns that are copied to the output; () for the names of the files and the numbers of the rows.
        csv_format: How CSV files are written.
        on_bad_row: "refuse": a row that cannot be used is an error. "skip": it is left out.
        has_probabilities: Whether the output has the probability of each class.
    """

    model: str
    model_uri: str
    is_artifact: bool
    dataset: str
    source: str
    key_columns: tuple[str, ...]
    csv_format: CsvFormat
    on_bad_row: Literal["refuse", "skip"]
    has_probabilities: bool


def parse_request(
    *,
    model: tuple[str, str] | None,
    model_uri: str,
    dataset: str | None,
    source: str,
    key_columns: Sequence[str],
    csv_format: Mapping[str, Any],
    on_bad_row: str,
    probabilities: bool,
) -> PredictionRequest:
    """Check the step's parameters.

    Args:
        model: Folder and address of the input `model`; None if it is not set. The folder is "" if the
            model is to be downloaded.
        model_uri: See the component, as all that follow.
        dataset: Folder of the input `dataset`; None if it is not set.
        source: See the component.
        key_columns: See the component.
        csv_format: See the component.
        on_bad_row: See the component.
        probabilities: See the component.

    Raises:
        ValueError: A parameter is invalid, or contradicts another one.
    """
    _check_one("model", model, "model_uri", model_uri, "the model")
    _check_one("dataset", dataset, "source", source, "the rows")
    if on_bad_row not in ("refuse", "skip"):
        raise ValueError(f"on_bad_row is {on_bad_row!r}: allowed are 'refuse', 'skip'")
    if csv_format and not source:
        raise ValueError("csv_format is set, and a dataset has no CSV files: leave csv_format out, or set source")
    for name, count in Counter(key_columns).items():
        if count > 1:
            raise ValueError(f"key_columns has {name!r} {count} times: name each column once")
        if name in OUTPUT_COLUMNS:
            raise ValueError(
                f"key_columns has {name!r}, which is a column of the predictions: rename the column in the source, or "
                "leave it out"
            )
    return PredictionRequest(
        model[0] if model else "",
        model[1] if model else model_uri,
        model is not None,
        dataset or "",
        source,
        tuple(key_columns),
        parse_csv_format(csv_format),
        on_bad_row,  # type: ignore[arg-type]
        probabilities,
    )


def _check_one(first: str, value: object, second: str, address: str, what: str) -> None:
    """Check that exactly one of an input artifact and an address is set."""
    if value and address:
        raise ValueError(
            f"{first} and {second} ({without_secrets(address)}) are both set: set one of them, which gives {what}"
        )
    if not value and not address:
        raise ValueError(f"neither {first} nor {second} is set: set one of them, which gives {what}")
