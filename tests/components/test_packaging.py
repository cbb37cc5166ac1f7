"""The program of a step: its bootstrap, the import of its function, its packages and the delivery of the library."""

import ast

import kfp
import pytest

from kfp_distributed.components import Delivery
from kfp_distributed.components.kfp_interface.packaging import bootstrap, make_step
from kfp_distributed.library.archive import library_name
from kfp_distributed.library.content import content_hash, read_library


def say(text: str = "hello"):
    """Say something.

    Args:
        text: What to say.
    """
    print(text)  # A comment of the function.


def command_of(step) -> list[str]:
    return step.component_spec.implementation.container.command


def test_program_of_a_step_is_the_bootstrap_and_the_import_of_its_function():
    step = make_step(say, image="registry.example.com/steps:1")
    assert command_of(step)[-1].splitlines()[-5:] == [
        "if __name__ == '__main__':",
        "  from kfp_distributed.library.start import start",
        "  start('kfp.dsl.executor_main')",
        "else:",
        f"  from {say.__module__} import say",
    ]
    assert command_of(step)[-1].startswith(bootstrap())
    assert step.component_spec.inputs["text"].description == "What to say."


def test_bootstrap_has_the_hash_of_the_library_and_at_most_forty_lines():
    hash_ = content_hash(read_library())
    assert len(bootstrap().splitlines()) <= 40
    assert f"NAME, HASH = '{library_name(hash_)}', '{hash_}'" in bootstrap().splitlines()
    imports = [node for node in ast.parse(bootstrap()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [alias.name for node in imports for alias in node.names] == [
        *("base64", "hashlib", "http.client", "io", "json", "os", "re", "ssl", "sys", "tempfile", "time", "zipfile"),
    ]


def test_only_a_stock_image_installs_packages():
    stock = make_step(say, packages=["numpy>=1.26", "PyYAML"])
    image = make_step(say, image="registry.example.com/steps:1")
    containers = [step.component_spec.implementation.container for step in (stock, image)]
    assert [container.image for container in containers] == ["python:3.11", "registry.example.com/steps:1"]
    call = f"  start('kfp.dsl.executor_main', 'kfp=={kfp.__version__}', 'numpy>=1.26', 'PyYAML')"
    assert call in command_of(stock)[-1].splitlines()
    assert command_of(stock)[:-1] == command_of(image)[:-1]


def test_shell_installs_a_library_that_is_a_package():
    shell = command_of(make_step(say, library="https://files.example.com/library-1.whl"))[2]
    assert shell.startswith("library=https://files.example.com/library-1.whl\n")


def test_deliveries():
    assert Delivery.namespace() == Delivery()
    assert Delivery.image("steps:1") == Delivery("steps:1", "steps:1")
    assert Delivery.image("steps:1", evaluate="evaluate:1") == Delivery("steps:1", "evaluate:1")
    assert Delivery.package("kfp-distributed==0.1.0") == Delivery(requirement="kfp-distributed==0.1.0")


@pytest.mark.parametrize(
    ("variables", "delivery"),
    [
        ({}, Delivery.namespace()),
        ({"KFP_DISTRIBUTED_IMAGE": "s:1"}, Delivery.image("s:1")),
        ({"KFP_DISTRIBUTED_IMAGE": "s:1", "KFP_DISTRIBUTED_EVALUATE_IMAGE": "e:1"}, Delivery.image("s:1", "e:1")),
        ({"KFP_DISTRIBUTED_EVALUATE_IMAGE": "e:1"}, Delivery(evaluate_image="e:1")),
        ({"KFP_DISTRIBUTED_PACKAGE": "https://x/y.whl"}, Delivery.package("https://x/y.whl")),
    ],
)
def test_delivery_of_the_environment(variables, delivery):
    assert Delivery.from_environment(variables) == delivery


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("i", "", "p"), "image 'i' and package 'p'"),
        (("", "e", "p"), "image 'e' and package 'p'"),
        (("My Image", "", ""), "image of the steps = 'My Image'"),
        (("", "", "https://user:s3cret@host/x.whl"), r"https://\*\*\*@host/x.whl"),
        (("i", "", "https://user:s3cret@host/x.whl"), r"https://\*\*\*@host/x.whl"),
        (("", "", "https://host/x.whl?signature=s3cret"), r"x.whl\?\*\*\*"),
    ],
)
def test_contradictions_are_refused(options, words):
    with pytest.raises(ValueError, match=words) as refusal:
        Delivery.from_options(*options)
    assert "s3cret" not in str(refusal.value)


@pytest.mark.parametrize("requirement", ["not a requirement ??", "http://x/y z.whl", "-r file", "a\nb"])
def test_a_text_that_is_no_requirement_is_refused(requirement):
    with pytest.raises(ValueError, match="is no requirement"):
        Delivery.package(requirement)


@pytest.mark.parametrize(
    "requirement",
    ["kfp-distributed", "kfp-distributed[x] == 0.1.0", "kfp-distributed @ git+https://h/r.git@v1", "/wheels/a-1.whl"],
)
def test_requirements_and_urls_and_files_are_taken(requirement):
    assert Delivery.package(requirement).requirement == requirement


@pytest.mark.parametrize("make", [Delivery.image, Delivery.package])
def test_a_delivery_without_a_name_is_refused(make):
    with pytest.raises(ValueError, match="name"):
        make("")
