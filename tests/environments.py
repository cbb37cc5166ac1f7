"""Virtual environments that tests need beside their own: made once, kept by the hash of what is in them."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest


def environment(name: str, *installs: Sequence[str]) -> Path:
    """Returns the Python of an environment in which `pip install` has run with each list of arguments in turn.

    Environments are kept in $XDG_CACHE_HOME/kfp-distributed (else ~/.cache): delete the folder to have them made anew.
    """
    wanted = json.dumps([sys.version_info[:3], sys.prefix == sys.base_prefix, installs], default=list)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kfp-distributed"
    folder = cache / f"{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            for arguments in installs:
                pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
                subprocess.run([*pip, *arguments], check=True)
            (folder / "complete").write_text(wanted)
    return folder / "bin" / "python"


def horovod() -> str:
    """Returns the Python of the environment with Horovod, as `make environments` makes it."""
    return _made("horovod")


def pytorch() -> str:
    """Returns the Python of the environment with PyTorch, as `make environments` makes it, or that a variable names."""
    return os.environ.get("KFP_DISTRIBUTED_PYTORCH_PYTHON") or _made("pytorch")


def _made(name: str) -> str:
    """Where an environment cannot be made the test is skipped with the reason; on CI that is a failure."""
    script = Path(__file__).parents[1] / "images" / "environment.py"
    made = subprocess.run([sys.executable, script, name], capture_output=True, text=True)
    if made.returncode:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(made.stderr.strip())
    return made.stdout.splitlines()[-1]
