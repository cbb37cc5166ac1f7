"""Libraries in ConfigMaps, and which of them the steps of a compiled pipeline use. Pure."""

import base64
import re
import shlex
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml  # type: ignore[import-untyped]

from kfp_distributed.library.address_secrets import mask_secrets
from kfp_distributed.library.archive import ARCHIVE_KEY, read_archive
from kfp_distributed.library.content import content_hash

_BOOTSTRAP = re.compile(r"^NAME, HASH = '(kfp-distributed-[^']+)', '([0-9a-f]{64})'$", re.MULTILINE)
"""The line of library/bootstrap.py with the library that a step was compiled with."""

_REQUIREMENT = re.compile(r"^library=(.+)$", re.MULTILINE)
"""The line of a step's shell that installs the library, where pip does."""

_PACKAGES = re.compile(r"^  start\('[^']+', ", re.MULTILINE)
"""The line of a step's program that starts it, where packages are to be installed into a stock image."""


class StepLibrary(NamedTuple):
    """The library that one step of a compiled pipeline needs.

    Attributes:
        step: Name of the step.
        name: Name of the library, which is that of its ConfigMap.
        hash: Content hash of the library.
        image: Image that has the library; "" if pip installs packages into a stock image.
        requirement: Requirement or URL by which pip installs the library, without passwords; "" if it does not.
    """

    step: str
    name: str
    hash: str
    image: str = ""
    requirement: str = ""


def library_fault(config_map: Mapping[str, Any], hash_: str) -> str:
    """Return why a ConfigMap does not hold the library with this content hash; "" if it does.

    Archives of one content may differ in their bytes, because they depend on the version of zlib.
    """
    text = (config_map.get("binaryData") or {}).get(ARCHIVE_KEY)
    if text is None:
        return f"it has no {ARCHIVE_KEY}"
    try:
        content = read_archive(base64.b64decode(text, validate=True))
    # The errors of zipfile and of its decompressors for damaged archives, beside those of base64.
    except (ValueError, OSError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        return f"its {ARCHIVE_KEY} cannot be read: {error}"
    actual = content_hash(content)
    return "" if actual == hash_ else f"its content has the hash {actual[:12]}, not {hash_[:12]}"


def read_pipeline(text: str) -> dict[str, Any]:
    """Parse a compiled pipeline or component.

    Args:
        text: YAML as kfp's compiler writes it.

    Raises:
        ValueError: It is no YAML or no compiled pipeline. The text completes a sentence that begins with the name of
            the file.
    """
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise ValueError(f"is not YAML: {' '.join(str(error).split())}") from None
    specs = [document for document in documents if isinstance(document, dict) and "deploymentSpec" in document]
    if not specs:
        raise ValueError("is not a compiled pipeline: it has no deploymentSpec")
    return specs[0]


def read_step_libraries(spec: Mapping[str, Any]) -> list[StepLibrary]:
    """Return the libraries that the steps of a compiled pipeline or component need, in the order of the file.

    Args:
        spec: As `read_pipeline` returns it.

    Raises:
        ValueError: It has no step of this library. The text completes a sentence that begins with the name of the file.
    """
    executors = _mapping(_mapping(spec["deploymentSpec"]).get("executors"))
    libraries = [library for name, executor in executors.items() if (library := _step_library(name, executor))]
    if not libraries:
        raise ValueError(
            "has no step of kfp-distributed that names its library; compile it anew with the installed version"
        )
    return libraries


def has_library(spec: Mapping[str, Any], executor: str) -> bool:
    """Return whether the step of an executor is one of this library.

    Args:
        spec: A compiled pipeline or component, as `read_pipeline` returns it.
        executor: Label of the executor.
    """
    return bool(_step_library(executor, _mapping(_mapping(spec.get("deploymentSpec")).get("executors")).get(executor)))


def _mapping(node: object) -> dict[str, Any]:
    return node if isinstance(node, dict) else {}


def _step_library(name: str, executor: object) -> StepLibrary | None:
    container = _mapping(_mapping(executor).get("container"))
    command = container.get("command")
    text = "\n".join(map(str, command)) if isinstance(command, list) else ""
    library, requirement = _BOOTSTRAP.search(text), _REQUIREMENT.search(text)
    if not library:
        return None
    return StepLibrary(
        step=name.removeprefix("exec-"),
        name=library[1],
        hash=library[2],
        image="" if _PACKAGES.search(text) else str(container.get("image")),
        requirement=mask_secrets(" ".join(shlex.split(requirement[1]))) if requirement else "",
    )


def group_steps(libraries: Sequence[StepLibrary]) -> dict[StepLibrary, list[str]]:
    """Return the steps by what they need: a library whose `step` is "", from one ConfigMap, image or requirement."""
    groups: dict[StepLibrary, list[str]] = {}
    for library in libraries:
        groups.setdefault(library._replace(step=""), []).append(library.step)
    return groups
