"""Full and read-only disks: one line says which folder, how many bytes and what to do."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.takes(12)

MOUNT = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
PROGRAM = """
import sys
from types import SimpleNamespace
from kfp_distributed.components.prepare_data.step import run_step

out, source = sys.argv[1:]
parts = {name: SimpleNamespace(path=f"{out}/{name}", uri=f"{out}/{name}", metadata={}) for name in (
    "train_dataset", "validation_dataset", "test_dataset", "overview")}
run_step(**parts, source=source, label_column="label", shards=1, image_size="", drop_columns=[])
"""


@pytest.fixture
def run_on_disk(tmp_path):
    """Run the step with its outputs on a file system of its own: run_on_disk("size=1m", source) -> its output."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o %s none {disk}"
    if subprocess.run([*MOUNT, mount % "size=1m"], capture_output=True).returncode:
        pytest.skip("this machine does not let a test mount a file system")

    def run_step(options, source):
        command = f'{mount % options} && exec "$0" -c "$1" {disk}/out {source}'
        result = subprocess.run([*MOUNT, command, sys.executable, PROGRAM], capture_output=True, text=True)
        assert result.returncode == 1
        return result.stderr.strip().split("\n")[-1]

    return run_step


@pytest.mark.parametrize("size", ["1m", "2600k"], ids=["before the shards", "in the shards"])
def test_a_full_disk_is_named_with_the_bytes_that_are_needed(run_on_disk, file, tmp_path, size):
    rows = "".join(f"{i * 7919 % 10**6},{i * 104_729 % 10**6 / 7},{'ab'[i % 2]}\n" for i in range(100_000))
    source = file("data.csv", "x,y,label\n" + rows)

    line = run_on_disk(f"size={size}", source)

    assert line.startswith(f"OSError: the disk of {tmp_path}/disk/out is full: ")
    assert f"The rows need about {2 * source.stat().st_size:,} bytes there" in line
    assert "Free space, or give the step a larger disk (ephemeral-storage of its pod)" in line


def test_a_read_only_folder_is_named_in_one_line(run_on_disk, file, tmp_path):
    line = run_on_disk("ro", file("data.csv", "x,label\n" + "1,a\n2,b\n" * 20))

    assert line.startswith(f"OSError: the folder {tmp_path}/disk/out cannot be written (Read-only file system): ")
    assert line.endswith("Use another folder, or a volume that the step may write")
