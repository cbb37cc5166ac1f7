"""The installation of packages in steps and for replicas, with a real pip and a faulty index."""

import os
import shutil
import signal
import subprocess
import sys
import time

import kfp
import psutil
import pytest
from package_index import package_index, write_wheel

from kfp_distributed.components.kfp_interface.packaging import make_step
from kfp_distributed.library.archive import make_archive
from kfp_distributed.library.content import read_library
from kfp_distributed.library.packages import install_command, unmet

pytestmark = pytest.mark.takes(41)

GADGET = "tiny_gadget-1-py3-none-any.whl"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A separate Python in which steps can install packages."""
    folder = tmp_path_factory.mktemp("python")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder / "bin"


@pytest.fixture
def index(tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name, version in (("tiny-gadget", "1"), ("other-gadget", "2"), ("kfp", kfp.__version__)):
        write_wheel(wheels, name, version)
    with package_index(wheels) as served:
        yield served


@pytest.fixture
def run(tmp_path, python, index):
    """Return a function that runs a command like a container."""
    (tmp_path / "library.zip").write_bytes(make_archive(read_library(["library"])))
    environment = {
        "PATH": f"{python}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(tmp_path / "library.zip"),
        "PIP_INDEX_URL": index.url,
        "PIP_TIMEOUT": "1",
    }

    def run(*command):
        return subprocess.run(
            list(map(str, command)),
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    return run


def program(call: str, waits=(0, 0, 0)) -> tuple[str, ...]:
    """Return a Python command that installs packages without waits between the attempts."""
    lines = ["from kfp_distributed.library import packages", f"packages._WAITS = {waits}", f"packages.{call}"]
    return ("python3", "-c", "\n".join([*lines, "print('the step runs')"]))


def test_the_shell_of_a_step_survives_a_download_of_the_library_that_stalls(run, index):
    def step():
        pass

    index.stalls = 1
    shell = make_step(step, library="other-gadget").component_spec.implementation.container.command[:3]
    # Replaces the program of the step.
    done = run(*shell, "import sys, other_gadget; print('the step runs', *sys.argv[3:])", "--and", "arguments")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "the step runs --and arguments"), done.stdout
    wheel = "other_gadget-2-py3-none-any.whl"
    assert index.downloads == [(wheel, "stalled"), (wheel, "complete")]


def test_an_installation_survives_a_download_that_stalls_and_says_how_long_it_took(run, index):
    index.stalls = 1
    done = run(*program("install('tiny-gadget'); import tiny_gadget"))
    assert index.downloads == [(GADGET, "stalled"), (GADGET, "complete")]
    first, *_, result, last = done.stdout.splitlines()
    assert (done.returncode, first, last) == (0, "pip installs tiny-gadget", "the step runs"), done.stdout
    assert "pip failed with exit code 2; next attempt in 0 s" in done.stdout
    assert result.startswith("pip installed tiny-gadget in ")
    assert "image" in result


def test_requirements_that_are_met_are_not_installed(monkeypatch):
    met = ["Jinja2>=3", "Jinja2>=3; os_name == 'posix'", "no-such-package; os_name == 'none'"]
    assert unmet(met) == ()
    unknown = ["jinja2 >= 99", "no-such-package; os_name == 'posix'", "jinja2 @ https://x/y.whl", "-r file"]
    requirements = [*met, *unknown]
    assert unmet(requirements) == tuple(unknown)
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)  # As in a stock image.
    assert unmet(requirements) == tuple(requirements)


def test_missing_package_ends_the_step_with_the_exit_code_of_pip(run):
    done = run(*program("install('absent-gadget==7')"))
    assert done.returncode == 1
    assert done.stdout.count("next attempt in 0 s") == 3
    assert "No matching distribution found for absent-gadget==7" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("pip failed with exit code 1: check ")


def test_packages_of_a_replica_have_a_separate_folder(run, index, tmp_path):
    folder = tmp_path / "packages of a job"
    done = run(*install_command(["tiny-gadget; python_version>'3'"], ["other-gadget"], folder=str(folder)))
    assert done.returncode == 0, done.stdout
    assert {file.name for file in folder.glob("*.py")} == {"tiny_gadget.py", "other_gadget.py"}


def test_killed_pip_is_not_retried(run, tmp_path):
    killed = tmp_path / "killed"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    done = run(*program(f"sys.executable = '{killed}'; packages.install('tiny-gadget')"))
    assert done.returncode == 137
    assert "next attempt" not in done.stdout


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root to make a PID namespace")
def test_sigterm_ends_an_installation_that_is_process_1(run, index, python, tmp_path):
    index.stalls = 9
    environment = {
        "PATH": f"{python}:/usr/bin:/bin",
        "PYTHONPATH": str(tmp_path / "library.zip"),
        "PIP_INDEX_URL": index.url,
        "PIP_TIMEOUT": "60",
    }
    command = install_command(["tiny-gadget"], folder=str(tmp_path / "packages"))
    with subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", *command], env=environment) as unshare:
        deadline = time.monotonic() + 120
        while not index.downloads and time.monotonic() < deadline:
            time.sleep(0.05)
        (process_1,) = psutil.Process(unshare.pid).children()
        (pip,) = process_1.children()
        process_1.terminate()
        try:
            assert unshare.wait(120) == 128 + signal.SIGTERM
        finally:
            unshare.kill()
    assert not pip.is_running()


def test_passwords_in_addresses_are_not_logged(run, index):
    address = index.url.replace("//", "//user:s3cret@").replace("simple", f"wheels/{GADGET}")
    done = run(*program(f"install('{address}')"))
    assert done.returncode == 0, done.stdout
    assert "s3cret" not in done.stdout
    assert "//***@" in done.stdout
