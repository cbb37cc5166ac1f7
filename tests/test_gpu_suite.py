"""`make test-gpu` without a GPU, and that the tests of tests/gpu still fit the library."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_python_without_pytorch_runs_no_test_of_gpus_and_says_so():
    make = ["make", "--silent", "test-gpu", f"GPU_PYTHON={sys.executable} -S"]
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "PYTHONPATH")}
    done = subprocess.run(make, cwd=ROOT, env=environment, capture_output=True, text=True)
    reason = f"No test of GPUs was run, because {sys.executable} lacks torch, numpy, pyarrow, minio, pytest.\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, reason, "")
