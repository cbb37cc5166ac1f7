"""kubeflow-training, the public SDK, in an environment of its own: its kubernetes package is another than kfp's."""

import subprocess
import sys
import venv
from pathlib import Path

VERSION = "1.9.4"

_FOLDER = Path(__file__).parents[1] / ".cache" / f"kubeflow-training-{VERSION}"


def sdk_python() -> Path:
    """The Python that has it; installs it the first time."""
    python = _FOLDER / "bin" / "python"
    if not (_FOLDER / "installed").exists():
        print(f"installing kubeflow-training {VERSION} into {_FOLDER}", file=sys.stderr)
        venv.create(_FOLDER, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, f"kubeflow-training=={VERSION}"], check=True)
        (_FOLDER / "installed").touch()
    return python
