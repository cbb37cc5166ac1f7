"""How a compiled step gets the library and the packages that it needs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kfp_distributed.library.address_secrets import mask_secrets
from kfp_distributed.trainers.programs.requirements import checked_image

IMAGE_VARIABLE = "KFP_DISTRIBUTED_IMAGE"
"""Environment variable with the image of the steps, and of `evaluate` and `predict` unless its own is set."""

EVALUATE_IMAGE_VARIABLE = "KFP_DISTRIBUTED_EVALUATE_IMAGE"
"""Environment variable with the image of `evaluate` and `predict`, which run models."""

PACKAGE_VARIABLE = "KFP_DISTRIBUTED_PACKAGE"
"""Environment variable with a pip requirement or URL."""

_REQUIREMENT = re.compile(r"(?a)(\w[\w.-]* *(\[[\w,. -]+\])? *(@ *\S+|([<>=!~]=?=?[^<>=!~]+)*))|[\w+.-]+://\S+|\S*/\S+")
"""A requirement as pip takes it (PEP 508, without markers), a URL, or the path of a file."""


@dataclass(frozen=True)
class Delivery:
    """Where a compiled step finds the library. Make one with `namespace()`, `image()` or `package()`.

    Whatever the kind, a step uses an installed library whose content is the one that compiled it, and else the
    ConfigMap that `kfp-distributed install` creates in the namespace.

    Attributes:
        steps_image: Container image of the other steps; "" for a stock Python image.
        evaluate_image: Container image of `evaluate` and `predict`; "" for a stock Python image.
        requirement: Requirement or URL of the library for pip; "" where pip does not install it.
    """

    steps_image: str = ""
    evaluate_image: str = ""
    requirement: str = ""

    @classmethod
    def namespace(cls) -> "Delivery":
        """The library is in a ConfigMap of the namespace. Steps run in a stock image, where pip installs packages."""
        return cls()

    @classmethod
    def image(cls, steps: str, evaluate: str = "") -> "Delivery":
        """The library and all packages are in images, so that nothing is installed at the start of a step.

        Args:
            steps: Image of the steps that run no model.
            evaluate: Image of `evaluate` and `predict`, which need TensorFlow; by default `steps`.

        Raises:
            ValueError: A name is empty, or not that of an image.
        """
        return cls(checked_image("image of the steps", steps), checked_image("image of evaluate", evaluate or steps))

    @classmethod
    def package(cls, requirement: str) -> "Delivery":
        """Steps run in a stock image, where pip installs the library and the packages.

        Args:
            requirement: Requirement or URL, such as
                "https://files.example.com/kfp_distributed-0.1.0-py3-none-any.whl".

        Raises:
            ValueError: `requirement` is empty, is neither a requirement nor a URL or path, or has an account or a
                password, which the compiled YAML would show.
        """
        if not requirement:
            raise ValueError("the package is '': name a requirement or URL for pip")
        if not _REQUIREMENT.fullmatch(requirement):
            raise ValueError(
                f"the package {mask_secrets(requirement)!r:.200} is no requirement such as 'name==1.0', and no URL or "
                "path"
            )
        if mask_secrets(requirement) != requirement:
            raise ValueError(
                f"the package {mask_secrets(requirement)!r} has an account or a query, which the compiled YAML "
                "would show; set PIP_INDEX_URL or PIP_EXTRA_INDEX_URL on the task from a Secret"
            )
        return cls(requirement=requirement)

    @classmethod
    def from_options(cls, image: str = "", evaluate_image: str = "", package: str = "") -> "Delivery":
        """Return the delivery that options of a command line or environment variables ask for.

        Args:
            image: As `steps` of `image()`.
            evaluate_image: As `evaluate` of `image()`. Without `image` the other steps run in a stock image.
            package: As `requirement` of `package()`.

        Raises:
            ValueError: An image and a package are named, or one of them cannot be used.
        """
        if package and (image or evaluate_image):
            names = f"image {image or evaluate_image!r} and package {mask_secrets(package)!r}"
            raise ValueError(f"{names}: name only one of the two")
        if image:
            return cls.image(image, evaluate_image)
        if evaluate_image:
            return cls(evaluate_image=checked_image("image of evaluate", evaluate_image))
        return cls.package(package) if package else cls.namespace()

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> "Delivery":
        """Return the delivery that environment variables name; `namespace()` where none does.

        Args:
            variables: Such as os.environ, with KFP_DISTRIBUTED_IMAGE, KFP_DISTRIBUTED_EVALUATE_IMAGE or
                KFP_DISTRIBUTED_PACKAGE.

        Raises:
            ValueError: As of `from_options`.
        """
        names = (IMAGE_VARIABLE, EVALUATE_IMAGE_VARIABLE, PACKAGE_VARIABLE)
        return cls.from_options(*(variables.get(name, "") for name in names))
