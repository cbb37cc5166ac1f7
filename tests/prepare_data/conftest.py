from pathlib import Path
from types import SimpleNamespace

import pytest

from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.prepare import prepare


@pytest.fixture
def run(tmp_path):
    """Run the step into a folder: run(source, "out", seed=1) -> manifests by split."""

    def run_step(source, name="out", sources=None, **options):
        out = tmp_path / name
        splits = ("train", "validation", "test")
        datasets = {split: SimpleNamespace(path=str(out / split), metadata={}) for split in splits}
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
