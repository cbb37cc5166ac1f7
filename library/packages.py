"""Installs packages with pip: in a step that runs in a stock image, and for a replica.

`python -m kfp_distributed.library.packages [--folder FOLDER] [--alone REQUIREMENT]... REQUIREMENT...`
"""

import argparse
import importlib
import shlex
import signal
import site
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

from kfp_distributed.library.address_secrets import mask_secrets

# pip itself retries a connection that fails, but not a read timeout in the middle of a download. Its exit code does
# not distinguish a missing requirement from an index that is down, so the waits are short: 17 seconds in total.
_WAITS = (2, 5, 10)


def install(*requirements: str, alone: Sequence[str] = (), folder: str = "") -> None:
    """Install the requirements that are not met, in up to four attempts, and make them importable in this process.

    Args:
        requirements: Requirements or URLs, as pip takes them.
        alone: Requirements that are installed without their dependencies. Default: none.
        folder: Folder to install into, which pip creates. Default: "", the packages of this Python.

    Raises:
        SystemExit: pip failed four times, or was killed. The exit code is pip's, or 128 + the number of the signal.
    """
    if not folder:
        requirements, alone = unmet(requirements), unmet(alone)
    if not (requirements or alone):
        return
    target = ["--target", folder] if folder else []
    # Python compiles what a program imports. To compile all of numpy and pyarrow takes half of the processor time.
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    names = mask_secrets(shlex.join([*requirements, *alone]))
    print(f"pip installs {names}", flush=True)
    start = time.monotonic()
    for arguments in (requirements, alone and ("--no-deps", *alone)):
        if arguments:
            _run_with_retries([*pip, "--no-warn-script-location", *target, *arguments])
    seconds = time.monotonic() - start
    print(f"pip installed {names} in {seconds:.0f} s; an image with these packages saves this time", flush=True)
    if not folder:
        importlib.invalidate_caches()
        if site.ENABLE_USER_SITE:
            # pip may have created the folder for this user's packages.
            site.addsitedir(site.getusersitepackages())


def unmet(requirements: Sequence[str]) -> tuple[str, ...]:
    """Return the requirements that the installed packages do not meet, and those that only pip can judge."""
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:  # As in a stock image.
        return tuple(requirements)

    def is_met(text: str) -> bool:
        try:
            requirement = Requirement(text)
            if requirement.marker and not requirement.marker.evaluate():
                return True
            is_plain = not (requirement.url or requirement.extras)
            return is_plain and requirement.specifier.contains(version(requirement.name), prereleases=True)
        except (InvalidRequirement, PackageNotFoundError):
            return False

    return tuple(text for text in requirements if not is_met(text))


def _run_with_retries(command: Sequence[str], sleep: Callable[[float], object] = time.sleep) -> None:
    for wait in (*_WAITS, None):
        code = subprocess.run(command, check=False).returncode
        if code == 0:
            return
        if wait is None or code < 0:
            print(f"pip failed with exit code {code}: check the requirements and the package index", flush=True)
            raise SystemExit(code if code > 0 else 128 - code)
        print(f"pip failed with exit code {code}; next attempt in {wait} s", flush=True)
        sleep(wait)


def install_command(
    requirements: Sequence[str], alone: Sequence[str] = (), *, folder: str, python: str = "python3"
) -> list[str]:
    """Return the command that installs requirements; the library must be on its PYTHONPATH.

    Args:
        requirements: See `install`.
        alone: See `install`.
        folder: See `install`.
        python: The Python whose pip installs them.
    """
    options = [f"--alone={requirement}" for requirement in alone]
    return [python, "-m", "kfp_distributed.library.packages", f"--folder={folder}", *options, "--", *requirements]


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    """Install the requirements of the command line. SIGTERM ends the installation and pip at once."""
    # Process 1 of a container ignores a signal without a handler, so that its pod would stay for the grace period.
    # `subprocess.run` kills pip when the handler raises.
    signal.signal(signal.SIGTERM, _end)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="", help="folder to install into")
    parser.add_argument("--alone", action="append", default=[], help="requirement to install without its dependencies")
    parser.add_argument("requirements", nargs="*")
    options = parser.parse_args()
    install(*options.requirements, alone=options.alone, folder=options.folder)


if __name__ == "__main__":
    main()
