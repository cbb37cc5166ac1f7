"""Install the public SDKs in separate environments. kfp needs another version of kubernetes."""

import subprocess
import sys
import venv
from pathlib import Path

VERSION = "1.9.4"
"""Version of kubeflow-training, the SDK of the training operator."""

TRAINER_VERSION = "0.5.0"
"""Version of kubeflow, the SDK of Kubeflow Trainer v2."""


def sdk_python(package: str = f"kubeflow-training=={VERSION}") -> Path:
    """Return the Python of the environment with a package. The first call installs it."""
    folder = Path(__file__).parents[1] / ".cache" / package.replace("==", "-")
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        print(f"installing {package} into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, package], check=True)
        (folder / "installed").touch()
    return python
