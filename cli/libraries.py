"""Libraries in ConfigMaps, and which of them the steps of a compiled pipeline use. Pure."""

import base64
import re
import shlex
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import yaml  # type: ignore[import-untyped]

from kfp_distributed.library.archive import ARCHIVE_KEY, read_archive
from kfp_distributed.library.content import content_hash

_BOOTSTRAP = re.compile(r"^NAME, HASH = '(kfp-distributed-[^']+)', '([0-9a-f]{64})'$", re.MULTILINE)
"""The line of library/bootstrap.py with the library that a step was compiled with."""

_PACKAGE = re.compile(r"kfp[-_.]distributed|://", re.IGNORECASE)
"""What a requirement of the library has, and no other requirement of a step: the library's name, or a URL."""

_CREDENTIALS = re.compile("//[^/ ]*@")


class StepLibrary(NamedTuple):
    """The library that one step of a compiled pipeline needs.

    Attributes:
        step: Name of the step.
        name: Name of the library, which is that of its ConfigMap.
        hash: Content hash of the library.
        image: Image that has the library; "" if pip installs packages into a stock image.
        requirement: Requirement or URL by which pip installs the library, without credentials; "" if it does not.
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
    # The errors of zipfile for damaged archives, beside those of base64.
    except (ValueError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        return f"its {ARCHIVE_KEY} cannot be read: {error}"
    actual = content_hash(content)
    return "" if actual == hash_ else f"its content has the hash {actual[:12]}, not {hash_[:12]}"


def read_step_libraries(text: str) -> list[StepLibrary]:
    """Return the libraries that the steps of a compiled pipeline or component need, in the order of the file.

    Args:
        text: YAML as kfp's compiler writes it.

    Raises:
        ValueError: It is no YAML, no compiled pipeline, or has no step of this library. The text completes a sentence
            that begins with the name of the file.
    """
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise ValueError(f"is not YAML: {' '.join(str(error).split())}") from None
    specs = [document for document in documents if isinstance(document, dict) and "deploymentSpec" in document]
    if not specs:
        raise ValueError("is not a compiled pipeline: it has no deploymentSpec")
    executors = (specs[0]["deploymentSpec"] or {}).get("executors") or {}
    libraries = [library for name, executor in executors.items() if (library := _step_library(name, executor))]
    if not libraries:
        raise ValueError(
            "has no step of kfp-distributed that names its library; compile it anew with the installed version"
        )
    return libraries


def _step_library(name: str, executor: Mapping[str, Any]) -> StepLibrary | None:
    container = executor.get("container") or {}
    words = [str(word) for word in container.get("command") or ()]
    match = next((match for word in words if (match := _BOOTSTRAP.search(word))), None)
    if match is None:
        return None
    scripts = [word for word in words if "pip install" in word]
    requirement = next(_library_requirements(scripts[0]), "") if scripts else ""
    return StepLibrary(
        name.removeprefix("exec-"), match[1], match[2], "" if scripts else str(container.get("image")), requirement
    )


def _library_requirements(script: str) -> Iterator[str]:
    """Yield the requirements of the library in the script that installs the packages of a step."""
    try:
        # The last line has the requirements. The lines before it are a function.
        words = shlex.split(script.rpartition("\n")[2])
    except ValueError:
        return
    for word in words:
        if _PACKAGE.search(word):
            yield _CREDENTIALS.sub("//***@", word)


def group_steps(libraries: Sequence[StepLibrary]) -> dict[StepLibrary, list[str]]:
    """Return the steps by what they need: a library whose `step` is "", from one ConfigMap, image or requirement."""
    groups: dict[StepLibrary, list[str]] = {}
    for library in libraries:
        groups.setdefault(library._replace(step=""), []).append(library.step)
    return groups
