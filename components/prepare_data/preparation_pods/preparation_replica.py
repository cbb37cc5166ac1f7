"""The program of each pod that prepares data, which is run with `python -m`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kfp_distributed.components.prepare_data.preparation_options import parse_options
from kfp_distributed.components.prepare_data.preparation_pods.preparation_request import PreparationRequest
from kfp_distributed.components.prepare_data.preparation_pods.preparation_results import store_results
from kfp_distributed.components.prepare_data.prepare import prepare
from kfp_distributed.components.prepare_data.sources.download_limit import SourceTooLarge
from kfp_distributed.components.worker_pool.worker_replica import PodWork, run_pod
from kfp_distributed.storage.errors import ChecksumMismatch
from kfp_distributed.storage.shards import fetch_manifest
from kfp_distributed.trainers.runtime.lifecycle.ending import run_to_end


@dataclass
class _Output:
    """A dataset that the first pod writes, see `Artifact`."""

    path: str
    uri: str
    metadata: dict[str, Any] = field(default_factory=dict)


def main() -> int:
    """Run this pod's part of the preparation; return its exit code."""
    return run_pod(_prepare, (ValueError, ChecksumMismatch, SourceTooLarge))


def _prepare(work: PodWork) -> None:
    request = PreparationRequest(**work.parameters)
    datasets = {split: _Output(str(Path(split).absolute()), uri) for split, uri in request.uris.items()}
    overview = Path("overview.html").absolute()
    like = fetch_manifest(request.like) if request.like else None
    options = parse_options(**request.parameters, source_fingerprint=request.source_fingerprint, like=like)
    prepare(request.source, options, datasets, str(overview), request.sources_of_splits, work.engine)
    store_results(work.store, work.request, datasets, overview)


if __name__ == "__main__":
    run_to_end(main)
