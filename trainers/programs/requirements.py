"""Requirements that pip installs before a program starts, and the images that need none."""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

STOCK_IMAGE = "python:3.11"
"""Image of replicas if train_specification names none."""

URLLIB3 = "urllib3>=2,<3"
STORE = ("minio>=7.2.15,<8", "certifi>=2023.7", URLLIB3)
"""Requirements of the client of the object store."""

ENTRY = ("numpy>=1.26,<3", "pyarrow>=19,<27", *STORE)
"""Requirements of the entry program, which runs in each replica."""

TENSORFLOW = (
    'tensorflow-cpu==2.21.0; sys_platform == "linux" and platform_machine == "x86_64"',
    'tensorflow==2.21.0; sys_platform != "linux" or platform_machine != "x86_64"',
)


class Requirements(NamedTuple):
    """Requirements in pip's notation.

    Attributes:
        packages: Requirements to install with their dependencies.
        alone: Requirements to install without their dependencies.
    """

    packages: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()


REPLICA_KINDS = ("tensorflow", "horovod", "pytorch", "horovod-pytorch", "language-model")
"""Kinds of images for replicas: those in images/ but of the steps. Each has a variable, see `variable_of`."""

_IMAGES = {
    "keras_horovod": "horovod",
    "torch_classifier": "pytorch",
    "torch_horovod": "horovod-pytorch",
    "language_model": "language-model",
    "language_evaluation": "language-model",
}
"""Images, of those in images/, of what does not run in a stock image. Pip would install 7 GB of PyTorch."""

# Inputs by the names of columns are added to the exported network.
_ONNX = ("onnx>=1.16,<2",)

# tf_keras requires the package tensorflow. tensorflow-cpu is the same code in a fifth of the size.
_TRAINERS = {
    "keras_classifier": Requirements(TENSORFLOW, ("tf_keras==2.21.0",)),
    "torch_classifier": Requirements(("torch>=1.13,<3", *_ONNX)),
    "torch_horovod": Requirements(_ONNX),
}


def missing_here(program: Mapping[str, Any]) -> Requirements:
    """Return the requirements of a program that this Python lacks, and the `packages` of its train_specification."""
    requirements = requirements_of({**program, "image": "", "packages": ()})
    packages, alone = (tuple(name for name in names if find_spec(_module(name)) is None) for names in requirements)
    return Requirements((*packages, *program.get("packages", ())), alone)


def image_name(program: Mapping[str, Any], distribution_type: str) -> str:
    """Return the name of the image in images/, and of the environment of `make environments`, that a program needs.

    Args:
        program: A train_specification.
        distribution_type: Type of the job.

    Returns:
        The name; "" if any image will do.
    """
    if program.get("trainer"):
        return _IMAGES.get(program["trainer"], "")
    return {"MPI": "horovod", "PyTorch": "pytorch"}.get(distribution_type, "")


def replica_images(default: str = "", by_kind: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables with which a step finds the images of its replicas.

    Args:
        default: Image of all kinds; "" for none.
        by_kind: Image by kind, one of REPLICA_KINDS. Default: none.

    Raises:
        ValueError: A kind or the name of an image is not valid.
    """
    images = {kind: default for kind in REPLICA_KINDS if default} | dict(by_kind or {})
    for kind in images:
        if kind not in REPLICA_KINDS:
            raise ValueError(f"{kind!r} is not a kind of replica images; allowed are {', '.join(REPLICA_KINDS)}")
    return {variable_of(kind, "IMAGE"): checked_image(kind, image) for kind, image in images.items()}


def variable_of(name: str, kind: str) -> str:
    """Return the environment variable for an image, or for a Python with the same packages.

    Args:
        name: Name of the image, from `image_name`.
        kind: "IMAGE" or "PYTHON".
    """
    return f"KFP_DISTRIBUTED_{(name or 'tensorflow').upper().replace('-', '_')}_{kind}"


def image_of(program: Mapping[str, Any], distribution_type: str, variables: Mapping[str, str]) -> str:
    """Return the image of the replicas.

    It is the image of the train_specification, else that of a variable such as KFP_DISTRIBUTED_HOROVOD_IMAGE, else the
    stock image.

    Args:
        program: A train_specification.
        distribution_type: Type of the job.
        variables: Environment variables of the step.

    Raises:
        ValueError: The stock image does not run the program and no image is named, or a name is not valid.
    """
    name = image_name(program, distribution_type)
    variable = variable_of(name, "IMAGE")
    image = program.get("image") or variables.get(variable)
    if image or not (distribution_type == "MPI" or program.get("trainer") in _IMAGES):
        return checked_image("train_specification: image" if program.get("image") else variable, image or STOCK_IMAGE)
    raise ValueError(
        f"train_specification: image is missing, and the default image {STOCK_IMAGE} has no {name}; set an image with "
        f"{name} there or in {variable} of the step's environment"
    )


def checked_image(key: str, name: str) -> str:
    """Return the name of an image if it is valid.

    Args:
        key: Key or variable that has the name, for the error.
        name: Name of the image.

    Raises:
        ValueError: The name is not valid.
    """
    if re.fullmatch(r"(?a)([\w.:[\]-]+/)?[a-z\d]+([._/-]+[a-z\d]+)*(:[\w.-]+)?(@sha256:[a-f\d]{64})?", name):
        return name
    raise ValueError(
        f"{key} = {name!r:.200} is not a valid name of an image; write HOST/NAME:TAG, with NAME in lower case"
    )


def _module(requirement: str) -> str:
    return re.split("[<=>;]", requirement)[0].removesuffix("-cpu")


def requirements_of(program: Mapping[str, Any]) -> Requirements:
    """Return what pip installs for a train_specification. With an image, these are only its own `packages`."""
    packages = tuple(program.get("packages", ()))
    if program.get("image"):
        return Requirements(packages)
    trainer = _TRAINERS.get(program.get("trainer", ""), Requirements())
    return Requirements((*ENTRY, *trainer.packages, *packages), trainer.alone)
