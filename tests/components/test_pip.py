"""The shell that installs packages, in compiled steps and in replicas: run with a real pip against a faulty index."""

import subprocess
import sys

import kfp
import pytest
from package_index import package_index, write_wheel

from kfp_distributed.components.packaging import make_step
from kfp_distributed.trainers.requirements import Requirements, pip_script


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A Python of its own, in which steps can install packages."""
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
    """Runs a shell script as a container does, but for the waits between attempts, which are only noted."""
    commands = tmp_path / "commands"
    commands.mkdir()
    (commands / "sleep").write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/waits\n')
    (commands / "sleep").chmod(0o755)
    environment = {
        "PATH": f"{commands}:{python}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PIP_INDEX_URL": index.url,
        "PIP_TIMEOUT": "1",
    }

    def run(*command, **variables):
        done = subprocess.run(
            command, env=environment | variables, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        waits = tmp_path / "waits"
        return done, waits.read_text().split() if waits.exists() else []

    return run


def step_shell(*packages):
    """The shell part of a compiled step's command, with a program in place of the step's own."""

    def step(number: int):
        pass

    component = make_step(step, packages=["tiny-gadget", *packages])
    return [*component.component_spec.implementation.container.command[:3], "echo", "the step runs"]


def test_a_step_survives_a_download_that_stalls(run, index):
    index.stalls = 1
    done, waits = run(*step_shell())
    assert done.returncode == 0, done.stderr
    assert waits == ["2"]
    assert index.downloads == [
        ("tiny_gadget-1-py3-none-any.whl", "stalled"),
        ("tiny_gadget-1-py3-none-any.whl", "complete"),
        (f"kfp-{kfp.__version__}-py3-none-any.whl", "complete"),
    ]
    assert "pip failed with exit code 2; next attempt in 2 s.\n" in done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("Installing packages: python3 -m pip install ")
    assert first.endswith(" tiny-gadget")
    assert last == "the step runs"


def test_a_step_whose_packages_are_nowhere_ends_with_pips_exit_code(run):
    done, waits = run(*step_shell("absent-gadget==7"))
    assert done.returncode == 1
    assert waits == ["2", "5", "10"]
    assert "No matching distribution found for absent-gadget==7" in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "pip failed with exit code 1: check the requirements and the package index."
    )
    assert "the step runs" not in done.stdout


def test_a_replica_survives_a_download_that_stalls(run, index, tmp_path):
    index.stalls = 1
    needed = Requirements(("tiny-gadget; python_version>'3'",), ("other-gadget",))
    script = pip_script(needed, folder=str(tmp_path / "packages of a job"))
    done, waits = run("sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert waits == ["2"]
    assert (tmp_path / "packages of a job" / "tiny_gadget.py").exists()
    assert (tmp_path / "packages of a job" / "other_gadget.py").exists()
    # What is complete is not downloaded again.
    assert [name for name, end in index.downloads if end == "complete"] == [
        "tiny_gadget-1-py3-none-any.whl",
        "other_gadget-2-py3-none-any.whl",
    ]


def test_pip_that_is_killed_is_not_run_again(run, tmp_path):
    (tmp_path / "commands" / "python3").write_text("#!/bin/sh\nkill -9 $$\n")
    (tmp_path / "commands" / "python3").chmod(0o755)
    done, waits = run("sh", "-c", pip_script(Requirements(("tiny-gadget",)), folder="packages"))
    assert (done.returncode, waits) == (137, [])


def test_credentials_in_an_address_stay_out_of_the_log(run, index):
    address = index.url.replace("//", "//user:s3cret@").replace("simple", "wheels/tiny_gadget-1-py3-none-any.whl")
    done, _ = run("sh", "-c", pip_script(Requirements((address,)), folder="packages"))
    assert done.returncode == 0, done.stderr
    assert "s3cret" not in done.stdout + done.stderr
    assert "Installing packages: " in done.stdout


def test_nothing_to_install_is_no_script():
    assert pip_script(Requirements(), folder="packages") == ""
