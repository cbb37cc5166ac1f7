"""Runs the tests of this folder if PyTorch finds a GPU, and else prints what is missing. `make test-gpu` calls it.

It needs only Python, and the packages of images/language-model, images/pytorch and pytest, on PYTHONPATH if they are
not installed. The checkout becomes importable as kfp_distributed by a link.
"""

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent.resolve()
REQUIRED = ("torch", "numpy", "pyarrow", "minio", "certifi", "urllib3", "pytest")
"""Modules without which no test can run. Others are missing only in the tests that need them."""


def obstacle() -> str:
    """Return why the tests cannot run; "" if they can."""
    missing = [name for name in REQUIRED if find_spec(name) is None]
    if missing:
        return f"{sys.executable} lacks {', '.join(missing)}"
    if os.environ.get("KFP_DISTRIBUTED_TEST_GPU") == "cpu":
        return ""
    import torch

    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} of {sys.executable} finds no GPU with CUDA"
    return ""


def main() -> int:
    """Run the tests with the arguments of this program, such as -k NAME; return the exit code of pytest."""
    if reason := obstacle():
        print(f"No test of GPUs was run, because {reason}.")
        return 0
    pytest = [sys.executable, "-m", "pytest", "-c", HERE / "pytest.ini", f"--confcutdir={HERE}"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kfp_distributed").symlink_to(HERE.parents[1])
        path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        # With the second variable, kfp_distributed.components needs no kfp.
        variables = {"PYTHONPATH": path, "_KFP_RUNTIME": "true"}
        variables |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HF_HUB_OFFLINE": "1"}
        return subprocess.run([*pytest, HERE, *sys.argv[1:]], env={**os.environ, **variables}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
