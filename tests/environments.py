"""Virtual environments that tests need beside their own: made once, kept by the hash of what is in them."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest


def environment(name: str, *installs: Sequence[str], base: str = "") -> Path:
    """Returns the Python of an environment in which `pip install` has run with each list of arguments in turn.

    It is made by this Python, or by `base`, whose packages it then has too.

    Environments are kept in $XDG_CACHE_HOME/kfp-distributed (else ~/.cache): delete the folder to have them made anew.
    """
    wanted = json.dumps([sys.version_info[:3], sys.prefix == sys.base_prefix, base, installs], default=list)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kfp-distributed"
    folder = cache / f"{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            maker = [base, "-m", "venv", "--system-site-packages"] if base else [sys.executable, "-m", "venv"]
            subprocess.run([*maker, folder], check=True)
            for arguments in installs:
                pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
                subprocess.run([*pip, *arguments], check=True)
            (folder / "complete").write_text(wanted)
    return folder / "bin" / "python"


def torch_python() -> str:
    """Returns a Python that has PyTorch and what the trainers need; where there is none the test is skipped.

    It is that of KFP_DISTRIBUTED_PYTORCH_PYTHON; the tests' own; or one made of Debian's python3-torch, which is what
    images/pytorch has too. pip's PyTorch takes 7 GB, so it is not installed unasked.
    """
    named = os.environ.get("KFP_DISTRIBUTED_PYTORCH_PYTHON")
    if named or find_spec("torch"):
        return named or sys.executable
    system = Path("/usr/bin/python3")
    if not system.exists() or subprocess.run([system, "-c", "import torch"], capture_output=True).returncode:
        pytest.skip("needs PyTorch: apt-get install python3-torch, or name a Python in KFP_DISTRIBUTED_PYTORCH_PYTHON")
    requirements = Path(__file__).parents[1] / "images" / "pytorch" / "requirements.txt"
    lines = [line for line in requirements.read_text().splitlines() if "==" in line]
    return str(environment("pytorch", ["--no-deps", *lines], base=str(system)))
