"""PyTorch 2.6 of Debian 13, a CPU build with Gloo, beside the system of this machine.

The packages are only unpacked, with their own Python and C library, so that nothing on the machine changes. It takes
1.2 GB. PyTorch from PyPI takes 7 GB, because its wheels for Linux have CUDA.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

RELEASE = "trixie"
PACKAGE = "python3-torch"
_PYTHON = "3.13"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

# LD_LIBRARY_PATH would reach other programs. PyTorch is built without libuv, which is its default for TCPStore.
_LAUNCHER = """#!/bin/sh
root=$(dirname "$(dirname "$(readlink -f "$0")")")
libraries=$root/usr/lib/x86_64-linux-gnu
export PYTHONHOME="$root/usr" USE_LIBUV=0 PYTHONPATH="$root/site${PYTHONPATH:+:$PYTHONPATH}"
exec "$root/usr/lib64/ld-linux-x86-64.so.2" --argv0 "$0" --inhibit-cache \\
    --library-path "$libraries:$libraries/blas:$libraries/lapack:$root/usr/lib" "$root/usr/bin/python@PYTHON@" "$@"
"""


def missing() -> str:
    """Return why this machine cannot unpack the packages; "" if it can."""
    for tool in ("apt-get", "dpkg-deb"):
        if not shutil.which(tool):
            return f"it is unpacked from packages of Debian with {tool}, which is missing"
    if os.uname().machine != "x86_64":
        return f"it is unpacked from packages for x86_64, and this is {os.uname().machine}"
    return "" if Path(_KEYRING).exists() else f"{_KEYRING} is missing: run apt-get install debian-archive-keyring"


def create(folder: Path, requirements: Sequence[str]) -> None:
    """Unpack PyTorch and its Python, and install packages of PyPI for it.

    Args:
        folder: Folder that is created. Its Python is bin/python.
        requirements: The packages of PyPI, which are installed without their dependencies.

    Raises:
        subprocess.CalledProcessError: A package cannot be downloaded.
    """
    apt = folder / "apt"
    for name in ("state/lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text(f"deb [signed-by={_KEYRING}] http://deb.debian.org/debian {RELEASE} main\n")
    options = {
        "Dir::State": apt / "state",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "1",
    }
    command = ["apt-get", "-qq", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
    subprocess.run([*command, "update"], check=True)
    install = [*command, "install", "--no-install-recommends", "--download-only", "-y", PACKAGE]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
    for package in sorted((apt / "cache" / "archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    shutil.rmtree(apt)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    target = ["--target", folder / "site", "--python-version", _PYTHON, "--only-binary", ":all:"]
    subprocess.run([*pip, *target, *requirements], check=True)
    launcher = folder / "bin" / "python"
    launcher.parent.mkdir()
    launcher.write_text(_LAUNCHER.replace("@PYTHON@", _PYTHON))
    launcher.chmod(0o755)
    subprocess.run([launcher, "-c", "import torch.distributed.checkpoint, minio, pyarrow, trl, peft"], check=True)
