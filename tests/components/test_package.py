"""The package of the components, in a new Python process each: what importing it does, and what its names are."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.takes(19)

IMPORT = "import kfp_distributed.components.train.run.launch as launch"
COMPONENT = "from kfp_distributed.components import train"


def run(program):
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@pytest.mark.parametrize("imports", [f"{IMPORT}\n{COMPONENT}", f"{COMPONENT}\n{IMPORT}"])
def test_a_component_and_the_modules_of_its_step_have_the_same_name(imports):
    assert run(f"{imports}\nprint(train.component_spec.name, launch.launch.__name__, train.run.launch is launch)") == [
        "train launch True"
    ]


def test_importing_reads_no_environment_and_hashes_nothing():
    """The variables count that are set when the pipeline is written."""
    assert run(
        "import os\n"
        "import kfp_distributed.components\n"
        "from kfp_distributed.components.kfp_interface import packaging\n"
        "print(packaging.bootstrap.cache_info().currsize)\n"
        "os.environ['KFP_DISTRIBUTED_IMAGE'] = 'images.example.com/steps'\n"
        f"{COMPONENT}\n"
        "print(train.component_spec.implementation.container.image)\n"
    ) == ["0", "images.example.com/steps"]


def test_a_name_that_does_not_exist():
    assert run(
        "import kfp_distributed.components as components\n"
        "for owner in (components, components.train):\n"
        "    try:\n"
        "        owner.trian\n"
        "    except AttributeError as error:\n"
        "        print(error)\n"
    ) == [
        "module 'kfp_distributed.components' has no attribute 'trian'",
        "'StepComponent' object has no attribute 'trian'",
    ]


def test_the_names_are_listed_before_their_first_use():
    assert run(
        "import kfp_distributed.components as components\n"
        "print(set(components.__all__) - set(dir(components)), 'train' in vars(components))\n"
    ) == ["set() False"]


def test_a_replaced_component_stays_replaced_when_another_is_first_used():
    assert run(
        "import kfp_distributed.components as components\n"
        "components.train = 'another'\n"
        "print(components.evaluate.name, components.train)\n"
    ) == ["evaluate another"]


def test_no_name_hides_a_module():
    """`steps` did. The component of a step stands for the package of the step."""
    assert (
        run(
            "import pkgutil, types\n"
            "import kfp_distributed.components as components\n"
            "from kfp_distributed.components.kfp_interface.kfp_internals import StepComponent\n"
            "for entry in pkgutil.iter_modules(components.__path__):\n"
            "    exec(f'import {components.__name__}.{entry.name} as module')\n"
            "    if not isinstance(module, types.ModuleType | StepComponent):\n"
            "        print(entry.name)\n"
        )
        == []
    )
