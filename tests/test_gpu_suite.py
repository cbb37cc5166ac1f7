"""`make test-gpu` without a GPU, and that the tests of tests/gpu still fit the library."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_a_python_without_pytorch_runs_no_test_of_gpus_and_says_so():
    make = ["make", "--silent", "test-gpu", f"GPU_PYTHON={sys.executable} -S"]
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "PYTHONPATH")}
    done = subprocess.run(make, cwd=ROOT, env=environment, capture_output=True, text=True)
    packages = "torch, numpy, pyarrow, minio, certifi, urllib3, pytest"
    reason = f"No test of GPUs was run, because {sys.executable} lacks {packages}.\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, reason, "")


@pytest.mark.takes(15)
def test_the_tests_of_gpus_fit_the_library():
    """One of them runs on the CPU. It shares the code that trains with the others, which need PyTorch."""
    tests = ROOT / "tests" / "gpu"
    pytest_of_gpus = [sys.executable, "-m", "pytest", "-c", tests / "pytest.ini", f"--confcutdir={tests}"]
    command = [*pytest_of_gpus, tests / "test_classifiers.py", "-k", "keras"]
    environment = {**os.environ, "KFP_DISTRIBUTED_TEST_GPU": "cpu", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 1 deselected" in done.stdout
