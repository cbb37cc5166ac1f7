"""The benchmarks leave nothing behind if they cannot run."""

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_a_disk_without_space_for_large_sources_is_refused_before_anything_is_written(tmp_path):
    page = tmp_path / "large.md"
    # A benchmark that writes all the same may not fill the disk.
    limited = ["sh", "-c", 'ulimit -f 1024; exec "$@"', "sh"]
    command = [sys.executable, BENCHMARKS / "large.py", "--size", "1e9", "--folder", tmp_path, "--page", page]
    done = subprocess.run([*limited, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "are free, 2700000002.0 GB are needed" in done.stderr
    assert done.stderr.endswith("set SIZE to fewer GB, or FOLDER to a folder on another disk\n")
    assert not page.exists()


class Cluster:
    """A Kubernetes API and an object store, of which one call fails. Records the names of the calls."""

    def __init__(self, failing: str) -> None:
        self.failing = failing
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            if name == self.failing or (name == "list" and self.failing == "make_bucket"):
                raise OSError(name)
            return [] if name == "list" else SimpleNamespace(data={})

        return call


@pytest.mark.parametrize(
    "failing", ["open_store", "create_namespaced_secret", "make_bucket", "upload_folder", "list", "delete"]
)
def test_the_namespace_of_a_benchmark_is_deleted_after_a_failure(tmp_path, monkeypatch, failing):
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module("cluster_jobs")
    cluster = Cluster(failing)
    monkeypatch.setattr(module, "config", cluster)
    monkeypatch.setattr(module, "client", SimpleNamespace(CoreV1Api=lambda: cluster))
    monkeypatch.setattr(module, "open_store", lambda uri: cluster.open_store(uri) and cluster)
    monkeypatch.setattr(module, "prepare", lambda folder: folder)
    with pytest.raises(OSError, match=f"^{failing}$"), module.benchmark_namespace():
        pass
    assert cluster.calls[-1] == "delete_namespace"
