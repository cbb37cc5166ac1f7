"""How a function becomes a step: its bootstrap, its source, what it installs, and where it finds the library."""

import ast

import kfp
import pytest

from kfp_distributed.components import Delivery
from kfp_distributed.components.packaging import bootstrap, make_step
from kfp_distributed.library.archive import library_name
from kfp_distributed.library.content import content_hash, read_library


def say(text: str = "hello"):
    """Say something.

    Args:
        text: What to say.
    """
    print(text)  # To everybody.


def command_of(step) -> list[str]:
    return step.component_spec.implementation.container.command


def test_a_step_is_its_bootstrap_and_the_import_of_its_function():
    step = make_step(say, image="registry.example.com/steps:1")
    assert command_of(step)[-1] == f"{bootstrap()}\nfrom {say.__module__} import say\n"
    assert step.component_spec.inputs["text"].description == "What to say."


def test_the_bootstrap_names_the_library_of_this_installation_in_forty_plain_lines():
    hash_ = content_hash(read_library())
    assert len(bootstrap().splitlines()) <= 40
    assert f"NAME, HASH = '{library_name(hash_)}', '{hash_}'" in bootstrap().splitlines()
    imports = [node for node in ast.parse(bootstrap()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [alias.name for node in imports for alias in node.names] == [
        *("base64", "hashlib", "http.client", "io", "json", "os", "ssl", "sys", "tempfile", "time", "zipfile"),
    ]


def test_a_stock_image_installs_packages_and_another_nothing():
    stock = make_step(say, packages=["numpy>=1.26", "PyYAML"], library=["https://files.example.com/library.whl"])
    image = make_step(say, image="registry.example.com/steps:1")
    containers = [step.component_spec.implementation.container for step in (stock, image)]
    assert [container.image for container in containers] == ["python:3.11", "registry.example.com/steps:1"]
    assert f"--no-deps kfp=={kfp.__version__} https://files.example.com/library.whl &&" in command_of(stock)[2]
    assert "\ninstall('numpy>=1.26', 'PyYAML')\n" in command_of(stock)[-1]
    assert "install" not in " ".join(command_of(image)).replace(bootstrap(), "")


def test_deliveries():
    assert Delivery.namespace() == Delivery()
    assert Delivery.image("steps:1") == Delivery("image", "steps:1", "steps:1")
    assert Delivery.image("steps:1", evaluate="evaluate:1") == Delivery("image", "steps:1", "evaluate:1")
    assert Delivery.package("kfp-distributed==0.1.0") == Delivery("package", requirement="kfp-distributed==0.1.0")


@pytest.mark.parametrize(
    ("variables", "delivery"),
    [
        ({}, Delivery.namespace()),
        ({"KFP_DISTRIBUTED_IMAGE": "s:1"}, Delivery.image("s:1")),
        ({"KFP_DISTRIBUTED_IMAGE": "s:1", "KFP_DISTRIBUTED_EVALUATE_IMAGE": "e:1"}, Delivery.image("s:1", "e:1")),
        ({"KFP_DISTRIBUTED_PACKAGE": "https://x/y.whl"}, Delivery.package("https://x/y.whl")),
    ],
)
def test_the_environment_names_a_delivery(variables, delivery):
    assert Delivery.from_environment(variables) == delivery


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("i", "", "p"), "image 'i' and package 'p'"),
        (("", "e", "p"), "image 'e' and package 'p'"),
        (("", "e", ""), "image of evaluate 'e'"),
    ],
)
def test_contradictions_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Delivery.from_options(*options)


@pytest.mark.parametrize("make", [Delivery.image, Delivery.package])
def test_a_delivery_without_a_name_is_refused(make):
    with pytest.raises(ValueError, match="name"):
        make("")
