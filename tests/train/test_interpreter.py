import sys

import pytest

from kfp_distributed.components.train.describe.distributions import parse_distribution
from kfp_distributed.components.train.describe.mpirun import elastic_horovodrun, horovodrun, mpirun
from kfp_distributed.components.train.run.runners.local.interpreter import find_python, mpi_command
from kfp_distributed.trainers.programs.requirements import STOCK_IMAGE, image_of

HOROVOD = {"trainer": "keras_horovod"}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The folder for executables of a Horovod environment, on a machine without Horovod and OpenMPI."""
    for image in ("TENSORFLOW", "HOROVOD", "PYTORCH", "HOROVOD_PYTORCH"):
        monkeypatch.delenv(f"KFP_DISTRIBUTED_{image}_PYTHON", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    folder = tmp_path / ".cache" / "kfp-distributed" / "horovod" / "bin"
    folder.mkdir(parents=True)
    return folder


def put(folder, *names):
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text("")
        (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("program", "distribution_type"),
    [
        ({"trainer": "keras_classifier"}, "TF"),
        ({"command": ["python", "main.py"]}, "Job"),
        # A command or function may not need Horovod.
        ({"command": ["python", "main.py"]}, "MPI"),
        ({"function": "fit", "source": ""}, "MPI"),
    ],
)
def test_the_current_python_is_the_default(home, program, distribution_type):
    assert find_python(program, distribution_type) == sys.executable


def test_an_environment_with_horovod_runs_mpi_programs(home, monkeypatch):
    put(home, "python")
    assert find_python(HOROVOD, "MPI") == str(home / "python")
    assert find_python({"command": ["python", "main.py"]}, "MPI") == str(home / "python")
    assert find_python({"command": ["python", "main.py"]}, "Job") == sys.executable
    monkeypatch.setenv("KFP_DISTRIBUTED_HOROVOD_PYTHON", "/opt/horovod/bin/python3")
    assert find_python(HOROVOD, "MPI") == "/opt/horovod/bin/python3"


def test_horovod_with_pytorch_is_a_separate_environment(home, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"torch_horovod needs horovod and torch, .* KFP_\w+_HOROVOD_PYTORCH_PYTHON"):
        find_python({"trainer": "torch_horovod"}, "MPI")
    folder = home.parents[1] / "horovod-pytorch" / "bin"
    folder.parent.mkdir()
    put(folder, "python")
    assert find_python({"trainer": "torch_horovod"}, "MPI") == str(folder / "python")
    # The current Python is used if it has both packages.
    for module, expected in (("horovod", str(folder / "python")), ("torch", sys.executable)):
        (tmp_path / "path" / module).mkdir(parents=True)
        (tmp_path / "path" / module / "__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path / "path")
        assert find_python({"trainer": "torch_horovod"}, "MPI") == expected


def test_a_missing_environment_is_an_error_that_names_the_command_and_the_variable(home):
    expected = "keras_horovod needs horovod.*`make environments`.* KFP_DISTRIBUTED_HOROVOD_PYTHON"
    with pytest.raises(ValueError, match=expected):
        find_python(HOROVOD, "MPI")


def result_or_error(find, *arguments):
    try:
        return find(*arguments)
    except ValueError as error:
        return str(error)


COMMAND = {"command": ["python", "main.py"]}


@pytest.mark.parametrize(
    ("program", "distribution_type", "name", "stock_image", "this_python"),
    [
        ({"trainer": "keras_classifier"}, "Job", "TENSORFLOW", True, True),
        ({"trainer": "keras_classifier"}, "TF", "TENSORFLOW", True, True),
        ({"trainer": "keras_horovod"}, "MPI", "HOROVOD", False, False),
        ({"trainer": "torch_classifier"}, "Job", "PYTORCH", False, False),
        ({"trainer": "torch_classifier"}, "PyTorch", "PYTORCH", False, False),
        ({"trainer": "torch_horovod"}, "MPI", "HOROVOD_PYTORCH", False, False),
        (COMMAND, "Job", "TENSORFLOW", True, True),
        (COMMAND, "TF", "TENSORFLOW", True, True),
        (COMMAND, "PyTorch", "PYTORCH", True, True),
        (COMMAND, "MPI", "HOROVOD", False, True),
    ],
)
def test_variables_set_the_image_and_the_python(
    home, monkeypatch, program, distribution_type, name, stock_image, this_python
):
    image, python = f"KFP_DISTRIBUTED_{name}_IMAGE", f"KFP_DISTRIBUTED_{name}_PYTHON"
    default = result_or_error(image_of, program, distribution_type, {})
    assert default == STOCK_IMAGE if stock_image else image in default
    default = result_or_error(find_python, program, distribution_type)
    assert default == sys.executable if this_python else python in default

    environment = {image: "example.com/trainer:1"}
    assert image_of(program, distribution_type, environment) == "example.com/trainer:1"
    assert image_of({**program, "image": "own:1"}, distribution_type, environment) == "own:1"
    monkeypatch.setenv(python, "/opt/trainer/bin/python3")
    assert find_python(program, distribution_type) == "/opt/trainer/bin/python3"


def test_openmpi_starts_the_ranks_if_installed_else_horovod(home, tmp_path):
    python, program, spec = str(home / "python"), ["main"], parse_distribution({"distribution_type": "MPI"})
    elastic = parse_distribution({"distribution_type": "MPI", "min_workers": 1})
    with pytest.raises(ValueError, match=r"distribution_type = 'MPI' .*mpirun.*/horovod/bin/python"):
        mpi_command(python, spec, program)
    put(home, "horovodrun")
    checked = [python, "-m", "kfp_distributed.trainers.runtime.unless_trained"]
    assert mpi_command(python, spec, program) == [*checked, *horovodrun(2, program, python)]
    put(tmp_path / "path", "mpirun")
    command = mpi_command(python, spec, program)
    assert command == [*checked, str(tmp_path / "path" / "mpirun"), *mpirun(2, program, "--oversubscribe")[1:]]
    put(home, "mpirun")
    assert mpi_command(python, spec, program)[3] == str(home / "mpirun"), "the mpirun of this environment comes first"
    assert mpi_command(python, elastic, program) == elastic_horovodrun(elastic, program, python)
