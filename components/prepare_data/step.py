"""Runs the step `prepare_data` on the artifacts of KFP."""

import signal
import threading
from collections.abc import Sequence
from typing import NoReturn

from kfp_distributed.components.artifacts import Artifact
from kfp_distributed.components.prepare_data.options import parse_options
from kfp_distributed.components.prepare_data.prepare import prepare
from kfp_distributed.components.source_address import DIGITS, without_secrets
from kfp_distributed.storage.placeholders import refuse_placeholders


def run_step(
    *,
    train_dataset: Artifact,
    validation_dataset: Artifact,
    test_dataset: Artifact,
    overview: Artifact,
    source: str,
    label_column: str,
    validation_fraction: float,
    test_fraction: float,
    shards: int,
    seed: int,
    image_size: str,
    drop_columns: Sequence[str],
    source_fingerprint: str = "",
) -> None:
    """Prepare data; the parameters are those of the component.

    Raises:
        SystemExit: The data cannot be prepared. The message is the last line of the step's log, because KFP shows an
            error nowhere else.
    """
    datasets = {"train": train_dataset, "validation": validation_dataset, "test": test_dataset}
    texts = {
        "source": source,
        "label_column": label_column,
        "image_size": image_size,
        "drop_columns": drop_columns,
        "source_fingerprint": source_fingerprint,
    }
    # KFP cancels a step by SIGTERM. Without a handler, the folders for downloads and pieces would stay.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end)
    try:
        refuse_placeholders(texts)
        options = parse_options(
            label_column,
            validation_fraction,
            test_fraction,
            shards,
            seed,
            image_size,
            drop_columns,
            source_fingerprint,
        )
        if source != DIGITS:  # The library has these data, so they change with the step's own program.
            print(cache_remark(source, source_fingerprint), flush=True)
        prepare(source, options, datasets, overview.path)
    except (ValueError, OSError) as error:
        raise SystemExit(f"\n{type(error).__name__}: {error}") from None


def cache_remark(source: str, source_fingerprint: str) -> str:
    """Return the log line about what the cache of Kubeflow Pipelines knows of the source."""
    if source_fingerprint:
        return f"source_fingerprint of {without_secrets(source)}: {source_fingerprint}"
    return (
        "source_fingerprint is empty: later runs with the same inputs get these datasets from the cache of Kubeflow "
        f"Pipelines, even if {without_secrets(source)} has changed. Pass the output of fingerprint_source, or call "
        "set_caching_options(False) on the task"
    )


def _end(number: int, frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)
