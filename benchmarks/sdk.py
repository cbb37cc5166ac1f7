"""Install kubeflow-training, the public SDK, in a separate environment. kfp needs another version of kubernetes."""

import subprocess
import sys
import venv
from pathlib import Path

VERSION = "1.9.4"

_FOLDER = Path(__file__).parents[1] / ".cache" / f"kubeflow-training-{VERSION}"


def sdk_python() -> Path:
    """Return the Python of the environment. The first call installs it."""
    python = _FOLDER / "bin" / "python"
    if not (_FOLDER / "installed").exists():
        print(f"installing kubeflow-training {VERSION} into {_FOLDER}", file=sys.stderr)
        venv.create(_FOLDER, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, f"kubeflow-training=={VERSION}"], check=True)
        (_FOLDER / "installed").touch()
    return python
