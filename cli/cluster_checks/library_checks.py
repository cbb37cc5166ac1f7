"""Check whether the libraries that a compiled pipeline needs are in a namespace. Pure."""

from collections.abc import Mapping

from kfp_distributed.cli.cluster_checks.checks import Check, Question, Refusal, install_command
from kfp_distributed.cli.setup.libraries import StepLibrary, group_steps, library_fault
from kfp_distributed.cluster_api.objects import Object

_PREFIX = "kfp-distributed-"
_HASH_LENGTH = len("-") + 12
"""Length of the end of a library's name: kfp-distributed-VERSION-HASH."""


def judge_libraries(
    question: Question, config_maps: Mapping[str, Object | Refusal | None], installed: str
) -> list[Check]:
    """Return a check for each library, image and requirement that the steps of the pipeline use.

    Args:
        question: Options of `doctor`, with the libraries of the steps.
        config_maps: The ConfigMaps of the namespace by name of the library; None for each that does not exist.
        installed: Name of the library that is installed here.
    """
    checks = []
    for library, steps in group_steps(question.libraries).items():
        names = ", ".join(steps)
        if library.image:
            text = f"image {library.image} of {names} must contain {library.name}; this is not checked"
            checks.append(Check("library", "ok", text))
        elif library.requirement:
            text = f"pip installs {library.requirement} for {names}, which must be {library.name}; this is not checked"
            checks.append(Check("library", "ok", text))
        else:
            checks.append(_judge_config_map(question, library, names, config_maps[library.name], installed))
    return checks


def _judge_config_map(
    question: Question, library: StepLibrary, steps: str, config_map: Object | Refusal | None, installed: str
) -> Check:
    name = f"{question.namespace}/{library.name}"
    if isinstance(config_map, Refusal):
        command = f"kubectl get configmap {library.name} --namespace {question.namespace}"
        return Check(
            "library", "warning", f"cannot read ConfigMap {name}: {config_map}", f"ask somebody who may: {command}"
        )
    fix = _install_command(question, library.name, installed)
    if config_map is None:
        return Check("library", "failed", f"there is no ConfigMap {name} with the library of {steps}", fix)
    if fault := library_fault(config_map, library.hash):
        return Check("library", "failed", f"ConfigMap {name} does not serve {steps}: {fault}", fix)
    return Check("library", "ok", f"ConfigMap {name} has the library of {steps}")


def _install_command(question: Question, library: str, installed: str) -> str:
    """Return the command that creates the ConfigMap of a library."""
    command = install_command(question.namespace, question.account)
    if library == installed:
        return command
    version, installed_version = (name[len(_PREFIX) : -_HASH_LENGTH] for name in (library, installed))
    if version != installed_version:
        return f"in a checkout of version {version}: pip install . && {command}"
    # Sources between two releases have one version and different content.
    return (
        f"this command line has {installed}: compile the pipeline again with it and run {command}, or run the latter "
        "from the sources that compiled the pipeline"
    )
