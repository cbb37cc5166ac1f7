import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from dask_processes import start_cluster

from kfp_distributed.components.prepare_data import read
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.prepare import prepare
from kfp_distributed.components.prepare_data.tables import csv_files, json_files, text_parts
from kfp_distributed.components.prepare_data.writing import write
from kfp_distributed.components.worker_pool.dask_engine import DaskEngine
from kfp_distributed.processes import ProcessGroup


@pytest.fixture(autouse=True)
def _forked_workers(monkeypatch):
    """Fork each worker from its nanny, which has imported Dask. By default, it imports Dask anew."""
    monkeypatch.setenv("DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD", "fork")


@pytest.fixture
def run(tmp_path):
    """Run the step into a folder: run(source, "out", seed=1) -> manifests by split."""

    def run_step(source, name="out", sources=None, uris_of_datasets=None, **options):
        out = tmp_path / name
        splits = ("train", "validation", "test")
        uris = uris_of_datasets or {split: str(out / split) for split in splits}
        datasets = {split: SimpleNamespace(path=str(out / split), uri=uris[split], metadata={}) for split in splits}
        return prepare(str(source), Options(**options), datasets, str(out / "overview.html"), sources or {})

    return run_step


@pytest.fixture
def file(tmp_path):
    """Write a file: file("data.csv", "a,label\n1,x\n") -> its path."""

    def write(name, content) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def small(monkeypatch):
    """Divide small sources into many chunks and pieces. Workers get both from this process."""
    monkeypatch.setattr(csv_files, "FIRST_BLOCK_BYTES", 2**12)
    monkeypatch.setattr(csv_files, "BLOCK_BYTES", 2**13)
    monkeypatch.setattr(json_files, "BLOCK_BYTES", 2**14)
    monkeypatch.setattr(text_parts, "STEP_BYTES", 2**12)
    monkeypatch.setattr(read, "CHUNK_BYTES", 2**14)
    monkeypatch.setattr(read, "PIECE_BYTES", 2**13)
    monkeypatch.setattr(read, "AHEAD_BYTES", 2**12)
    monkeypatch.setattr(write, "group_bytes", lambda files: 4000)


@pytest.fixture(scope="module")
def store_variables():
    """Environment with which the Dask workers reach an object store."""
    return {}


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory, store_variables):
    """Address of a Dask cluster of two workers, which the tests of a file share: a start takes seconds."""
    with ProcessGroup() as processes:
        yield start_cluster(processes, tmp_path_factory.mktemp("cluster") / "dask", {**os.environ, **store_variables})


@pytest.fixture
def outputs(tmp_path, request):
    """Run the step: outputs(source, 2) -> manifests and bytes of all files.

    `workers` is the number of Dask workers that the step starts. "shared" stands for those of the file's cluster, and 0
    for this process alone.
    """

    def run(source, workers, sources=None, name="", **options):
        out = tmp_path / f"{name or 'out'}-{workers}"
        splits = ("train", "validation", "test")
        datasets = {
            split: SimpleNamespace(path=str(out / split), uri=str(out / split), metadata={}) for split in splits
        }
        engine, scratch = None, str(tmp_path / "scratch")
        if workers == "shared":
            engine = DaskEngine(scratch, scheduler=request.getfixturevalue("scheduler"))
        elif workers:
            engine = DaskEngine(scratch, workers)
        values = Options(**{"label_column": "label", "shards": 3, **options})
        manifests = prepare(str(source), values, datasets, str(out / "overview"), sources or {}, engine)
        return manifests, {str(path.relative_to(out)): path.read_bytes() for path in out.glob("*/*")}

    return run
