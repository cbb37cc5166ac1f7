"""Reads the metrics and the answers that the replicas of a job have stored."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress

from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.trainers.runtime.job_description import EVALUATOR_METRICS, FINE_TUNING, TRAINING_METRICS
from kfp_distributed.trainers.runtime.outputs.fine_tuning_file import FineTuning, parse_fine_tuning
from kfp_distributed.trainers.runtime.outputs.metrics_file import NUMBERS

Metrics = Mapping[str, Sequence[Mapping[str, float]]]
"""Epochs and steps of each replica that recorded any: [{"epoch": 1, "loss": ..., ...}, ..., {"step": 10, ...}, ...].

A row has one of the numbers alone.
"""


def read_metrics(uri: str) -> Metrics:
    """Return the epochs and steps that replicas recorded, by replica. Files that cannot be read are left out."""
    return stored_metrics(open_store(uri))


def stored_metrics(store: Store) -> Metrics:
    """Return the result of `read_metrics` from a store that was opened at their folder."""
    metrics = {}
    for key in (TRAINING_METRICS, EVALUATOR_METRICS):
        # A store that is away must not hide the outcome of the training. A user's program may write a file of another
        # form, in which case its replica has printed that.
        with suppress(StorageError, KeyError, TypeError, ValueError, OverflowError):
            content = json.loads(store.read(key))
            metrics[str(content["replica"])] = [
                {number: row[number] * 1.0}
                # A user's program may write both numbers in a row, which would then be one of epochs and one of steps.
                | {name: value for name, value in row.items() if isinstance(value, int | float) and name not in NUMBERS}
                for number in NUMBERS
                for row in content.get(f"{number}s", ())
            ]
    return metrics


def read_fine_tuning(uri: str) -> FineTuning:
    """Return what a fine-tuning has written into the folder of the metrics; nothing if it is missing or unreadable."""
    with suppress(StorageError, KeyError, TypeError, ValueError):
        return parse_fine_tuning(open_store(uri).read(FINE_TUNING))
    return FineTuning()
