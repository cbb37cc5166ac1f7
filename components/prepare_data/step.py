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
from kfp_distributed.components.prepare_data.preparation_options import parse_options
from kfp_distributed.components.prepare_data.preparation_pods.preparation_request import (
    LEAST_MEMORY,
    PreparationRequest,
    preparation_folder,
)
from kfp_distributed.components.prepare_data.preparation_pods.preparation_run import prepare_in_pods
from kfp_distributed.components.prepare_data.prepare import prepare
from kfp_distributed.components.prepare_data.sources.read_rows import RowsRefused
from kfp_distributed.components.prepare_data.split_parameter import parse_split
from kfp_distributed.components.train.tell.log_format import print_entry
from kfp_distributed.components.train.tell.step_log import StepLog
from kfp_distributed.components.worker_pool.worker_choice import Workers, engine_of, parse_workers, pod_runner
from kfp_distributed.components.worker_pool.worker_run import WorkersFailed
from kfp_distributed.library.address_secrets import without_secrets
from kfp_distributed.storage.errors import StorageError, one_line
from kfp_distributed.storage.kubeflow.placeholders import refuse_placeholders
from kfp_distributed.storage.shards import fetch_manifest

_LOG = StepLog(print_entry)
_HELD_OUT = ("validation", "test")


def run_step(
    *,
    train_dataset: Artifact,
    validation_dataset: Artifact,
    test_dataset: Artifact,
    overview: Artifact,
    source: str,
    split: Mapping[str, Any] = MappingProxyType({}),
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
    given = {"source": source, "split": split, "like": like, "source_fingerprint": source_fingerprint}
    texts = {name: value for name, value in parameters.items() if not isinstance(value, int | float)}
    # KFP cancels a step by SIGTERM. Without a handler, the folders for downloads and pieces would stay.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end)
    try:
        refuse_placeholders({**given, **texts, "distribution_specification": distribution_specification})
        chosen = parse_workers(distribution_specification, LEAST_MEMORY)
        divided = parse_split(split)
        others = {name: address for name in _HELD_OUT if (address := divided.pop(f"{name}_source"))}
        request = PreparationRequest(
            source=source,
            sources_of_splits=others,
            parameters={**parameters, **divided},
            like=like,
            source_fingerprint=source_fingerprint,
            uris={name: dataset.uri for name, dataset in datasets.items()},
            workers=chosen.count,
            folder=preparation_folder(train_dataset.uri),
        )
        _prepare(request, chosen, datasets, overview)
    except WorkersFailed as error:
        raise SystemExit(f"\n{error}") from None
    except (ValueError, OSError, StorageError, ClusterError) as error:
        # Its lines name a row each. Other errors may have those of a library, such as Arrow.
        text = error if isinstance(error, RowsRefused) else one_line(error)
        raise SystemExit(f"\n{type(error).__name__}: {text}") from None


def _prepare(
    request: PreparationRequest, workers: Workers, datasets: Mapping[str, Artifact], overview: Artifact
) -> None:
    like = fetch_manifest(request.like) if request.like else None
    options = parse_options(**request.parameters, source_fingerprint=request.source_fingerprint, like=like)
    if request.source != DIGITS:  # The library has these data, so they change with the step's own program.
        print(cache_remark(request.source, request.source_fingerprint), flush=True)
    train = datasets["train"]
    if runner := pod_runner(workers, train.uri, _LOG):
        prepare_in_pods(request, workers.settings, runner, datasets, Path(overview.path), _LOG)
    else:
        with engine_of(workers, train.path, train.uri, request.folder) as engine:
            prepare(request.source, options, datasets, overview.path, request.sources_of_splits, engine)


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
