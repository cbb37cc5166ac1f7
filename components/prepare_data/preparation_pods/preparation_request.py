"""What the pods that prepare data are asked for (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfp_distributed.components.worker_pool.worker_job import WorkerRequest
from kfp_distributed.storage.uri import uri_beside

MODULE = "kfp_distributed.components.prepare_data.preparation_pods.preparation_replica"
"""Module that each pod runs."""

LEAST_MEMORY = "512Mi"
"""Lowest worker_memory. Workers have needed up to 440 MB for sources of 10 GB, see benchmarks/large.md."""


@dataclass(frozen=True)
class PreparationRequest(WorkerRequest):
    """What the pods are asked for. All values are JSON.

    Attributes:
        source: Address of the data, or "digits".
        sources_of_splits: Addresses of the rows of "validation" or "test" alone.
        parameters: Parameters of the step as `parse_options` takes them, without those below.
        like: Address of the dataset whose columns are applied; "" for none.
        source_fingerprint: Fingerprint of the source; "" if it is unknown.
        uris: Address of the output artifact of each split.
    """

    source: str
    sources_of_splits: Mapping[str, str]
    parameters: Mapping[str, Any]
    like: str
    source_fingerprint: str
    uris: Mapping[str, str]


def preparation_folder(dataset_uri: str) -> str:
    """Return the address for what workers store until the datasets are complete, beside the outputs of the step.

    Args:
        dataset_uri: Address of the output `train_dataset`.
    """
    return uri_beside(dataset_uri, "preparation")
