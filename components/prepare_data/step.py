"""Runs the step `prepare_data` on the artifacts of KFP."""

import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.external_services.source_address import DIGITS
from kfp_distributed.components.kfp_interface.artifacts import Artifact
from kfp_distributed.components.prepare_data.preparation_job import LEAST_MEMORY, PreparationRequest, preparation_folder
from kfp_distributed.components.prepare_data.preparation_options import parse_options
from kfp_distributed.components.prepare_data.preparation_run import prepare_in_pods
from kfp_distributed.components.prepare_data.prepare import prepare
from kfp_distributed.components.prepare_data.sources.reading import RowsRefused
from kfp_distributed.components.train.tell.log_format import print_entry
from kfp_distributed.components.train.tell.step_log import StepLog
from kfp_distributed.components.worker_pool.worker_choice import engine_of, parse_workers, pod_runner
from kfp_distributed.components.worker_pool.worker_run import WorkersFailed
from kfp_distributed.library.address_secrets import without_secrets
from kfp_distributed.storage.errors import StorageError, one_line
from kfp_distributed.storage.placeholders import refuse_placeholders
from kfp_distributed.storage.shards import fetch_manifest

_LOG = StepLog(print_entry)


def run_step(
    *,
    train_dataset: Artifact,
    validation_dataset: Artifact,
    test_dataset: Artifact,
    overview: Artifact,
    source: str,
    validation_source: str = "",
    test_source: str = "",
    like: str = "",
    source_fingerprint: str = "",
    distribution_specification: Mapping[str, Any] = MappingProxyType({}),
    **parameters: Any,  # noqa: ANN401  (checked by parse_options)
) -> None:
    """Prepare data; the parameters are those of the component.

    Raises:
        SystemExit: The data cannot be prepared. The message is the last line of the step's log, because KFP shows an
            error nowhere else.
    """
    datasets = {"train": train_dataset, "validation": validation_dataset, "test": test_dataset}
    others = {"validation": validation_source, "test": test_source}
    texts = {
        "source": source,
        "validation_source": validation_source,
        "test_source": test_source,
        "source_fingerprint": source_fingerprint,
        "like": like,
        "distribution_specification": distribution_specification,
        **{name: value for name, value in parameters.items() if not isinstance(value, int | float)},
    }
    # KFP cancels a step by SIGTERM. Without a handler, the folders for downloads and pieces would stay.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end)
    try:
        refuse_placeholders(texts)
        chosen = parse_workers(distribution_specification, LEAST_MEMORY)
        options = parse_options(
            **parameters, source_fingerprint=source_fingerprint, like=fetch_manifest(like) if like else None
        )
        if source != DIGITS:  # The library has these data, so they change with the step's own program.
            print(cache_remark(source, source_fingerprint), flush=True)
        others = {split: address for split, address in others.items() if address}
        folder = preparation_folder(train_dataset.uri)
        if runner := pod_runner(chosen, train_dataset.uri, _LOG):
            request = PreparationRequest(
                source=source,
                sources_of_splits=others,
                parameters=parameters,
                like=like,
                source_fingerprint=source_fingerprint,
                uris={split: dataset.uri for split, dataset in datasets.items()},
                workers=chosen.count,
                folder=folder,
            )
            prepare_in_pods(request, chosen.settings, runner, datasets, Path(overview.path), _LOG)
        else:
            with engine_of(chosen, train_dataset.path, train_dataset.uri, folder) as engine:
                prepare(source, options, datasets, overview.path, others, engine)
    except WorkersFailed as error:
        raise SystemExit(f"\n{error}") from None
    except (ValueError, OSError, StorageError, ClusterError) as error:
        # Its lines name a row each. Other errors may have those of a library, such as Arrow.
        text = error if isinstance(error, RowsRefused) else one_line(error)
        raise SystemExit(f"\n{type(error).__name__}: {text}") from None


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
