"""A disk without room for the predictions."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.takes(3)

MOUNT = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
PROGRAM = """
import sys
from types import SimpleNamespace
from kfp_distributed.components.predict.step import run_step

out, model, dataset = sys.argv[1:]
predictions, model, dataset = (
    SimpleNamespace(path=path, uri=path, metadata={}) for path in (f"{out}/predictions", model, dataset)
)
run_step(predictions=predictions, model=model, dataset=dataset, source="", key_columns=["a"], csv_format={},
    on_bad_row="refuse", probabilities=True)
"""


def test_a_full_disk_is_named_and_nothing_is_left(tmp_path, prepared):
    rows = "".join(f"{i * 7919 % 10**6},{i % 97},{i % 89},{i % 83},{'abc'[i % 3]}\n" for i in range(30_000))
    (tmp_path / "rows.csv").write_text("a,b,c,d,label\n" + rows)
    dataset, model, disk = prepared(tmp_path / "rows.csv", shards=1), tmp_path / "model", tmp_path / "disk"
    for folder in (model, disk):
        folder.mkdir()
    shutil.copy(Path(__file__).parent / "scikit_learn" / "tree.onnx", model / "model.onnx")
    mount = f"mount -t tmpfs -o size=100k none {disk}"
    if subprocess.run([*MOUNT, mount], capture_output=True).returncode:
        pytest.skip("this machine does not let a test mount a file system")
    step = f'{mount} && "$0" -c "$1" {disk}/out {model} {dataset}; code=$?; find {disk} -type f; exit $code'
    result = subprocess.run([*MOUNT, step, sys.executable, PROGRAM], capture_output=True, text=True)
    assert result.returncode == 1
    line = result.stderr.strip().split("\n")[-1]
    assert line.startswith(f"OSError: the disk of {disk}/out is full: ")
    assert line.endswith("Free space, or give the step a larger disk (ephemeral-storage of its pod)")
    assert str(disk) not in result.stdout
