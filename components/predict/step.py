"""Runs the step `predict` on the artifacts of KFP."""

import signal
import threading
from typing import Any, NamedTuple, NoReturn

from kfp_distributed.components.artifacts import Artifact
from kfp_distributed.components.predict.prediction import run_prediction
from kfp_distributed.components.predict.prediction_request import parse_request
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.model import ModelIncomplete
from kfp_distributed.storage.placeholders import refuse_placeholders


class Predicted(NamedTuple):
    """Number of predicted rows."""

    rows: int


def run_step(
    *,
    predictions: Artifact,
    model: Artifact | None,
    dataset: Artifact | None,
    **parameters: Any,  # noqa: ANN401  (checked by parse_request)
) -> Predicted:
    """Predict rows, and return their number; the parameters are those of the component.

    Raises:
        SystemExit: The rows cannot be predicted. The message is the last line of the step's log, because KFP shows an
            error nowhere else.
    """
    # KFP cancels a step by SIGTERM. Without a handler, the folders for downloads and unfinished files would stay.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end)
    try:
        refuse_placeholders({name: value for name, value in parameters.items() if not isinstance(value, bool)})
        request = parse_request(
            model=(model.path, model.uri) if model else None, dataset=dataset.path if dataset else None, **parameters
        )
        return Predicted(run_prediction(request, predictions))
    except (ValueError, OSError, StorageError, ModelIncomplete) as error:
        raise SystemExit(f"\n{type(error).__name__}: {error}") from None


def _end(number: int, frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)
