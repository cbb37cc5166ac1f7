"""What pip installs where a program runs in an image that is not known to hold it."""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

STOCK_IMAGE = "python:3.11"
"""The image of replicas whose train_specification names none."""

URLLIB3 = "urllib3>=2,<3"
STORE = ("minio>=7.2.15,<8", "certifi>=2023.7", URLLIB3)
"""What the client of the object store imports."""

ENTRY = ("numpy>=1.26,<3", "pyarrow>=19,<27", *STORE)
"""Of the entry program, which runs in each replica."""

TENSORFLOW = (
    'tensorflow-cpu==2.21.0; sys_platform == "linux" and platform_machine == "x86_64"',
    'tensorflow==2.21.0; sys_platform != "linux" or platform_machine != "x86_64"',
)


class Requirements(NamedTuple):
    """Requirements in pip's notation: `packages`, and those to install `alone`, without what they depend on."""

    packages: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()


_IMAGES = {"keras_horovod": "horovod", "torch_classifier": "pytorch", "torch_horovod": "horovod-pytorch"}
"""The images, of those in images/, of trainers that a stock image is not made to run: of PyTorch pip installs 7 GB."""

# tf_keras asks for the package named tensorflow; tensorflow-cpu is the same code in a fifth of the size.
_TRAINERS = {
    "keras_classifier": Requirements(TENSORFLOW, ("tf_keras==2.21.0",)),
    # From PyTorch 2 on, the export needs onnx.
    "torch_classifier": Requirements(("torch>=1.13,<3", "onnx>=1.16,<2")),
}


def missing_here(program: Mapping[str, Any]) -> Requirements:
    """What this Python lacks of what a train_specification needs, and all that it asks for by itself."""
    needed = requirements_of({**program, "image": "", "packages": ()})
    lacking = [tuple(each for each in names if find_spec(_module(each)) is None) for names in needed]
    return Requirements((*lacking[0], *program.get("packages", ())), lacking[1])


def image_name(program: Mapping[str, Any], distribution_type: str) -> str:
    """Which of images/, and of the environments that `make environments` makes, a program runs in; "" for any."""
    if program.get("trainer"):
        return _IMAGES.get(program["trainer"], "")
    return {"MPI": "horovod", "PyTorch": "pytorch"}.get(distribution_type, "")


def variable_of(name: str, what: str) -> str:
    """The environment variable that names such an image, or a Python that has what it has."""
    return f"KFP_DISTRIBUTED_{(name or 'tensorflow').upper().replace('-', '_')}_{what}"


def image_of(program: Mapping[str, Any], distribution_type: str, variables: Mapping[str, str]) -> str:
    """The image that a train_specification names, or KFP_DISTRIBUTED_HOROVOD_IMAGE or the like; else the stock image.

    Raises:
        ValueError: It has to be named, and is not, or its name is none.
    """
    name = image_name(program, distribution_type)
    variable = variable_of(name, "IMAGE")
    found = program.get("image") or variables.get(variable)
    if found or not (distribution_type == "MPI" or program.get("trainer") in _IMAGES):
        return checked_image("train_specification: image" if program.get("image") else variable, found or STOCK_IMAGE)
    raise ValueError(
        f"train_specification: image is not given, and {STOCK_IMAGE} has no {name}; name one that has, there or "
        f"in {variable} of the step's environment"
    )


def checked_image(key: str, name: str) -> str:
    """The name of an image, of which `key` says where it stands; ValueError where no image can be called so."""
    if re.fullmatch(r"(?a)([\w.:[\]-]+/)?[a-z\d]+([._/-]+[a-z\d]+)*(:[\w.-]+)?(@sha256:[a-f\d]{64})?", name):
        return name
    raise ValueError(f"{key} = {name!r:.200} is no image's name; write it as HOST/NAME:TAG, with NAME in lower case")


def _module(requirement: str) -> str:
    return re.split("[<=>;]", requirement)[0].removesuffix("-cpu")


def requirements_of(program: Mapping[str, Any]) -> Requirements:
    """What a train_specification needs installed. An image that it names holds all but the `packages` it names."""
    wanted = tuple(program.get("packages", ()))
    if program.get("image"):
        return Requirements(wanted)
    trainer = _TRAINERS.get(program.get("trainer", ""), Requirements())
    return Requirements((*ENTRY, *trainer.packages, *wanted), trainer.alone)
