"""Plan the changes of `kfp-distributed install` and `uninstall` to the objects of a namespace. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from importlib.resources import files
from typing import Any, Literal, NamedTuple

import yaml  # type: ignore[import-untyped]

from kfp_distributed.cli.setup.libraries import library_fault
from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.library.archive import HASH_ANNOTATION, VERSION_LABEL, library_config_map
from kfp_distributed.storage.kubeflow.kfp_backend import STEP_ACCOUNT

ROLE, TRAINER_ROLE, DEPLOY_ROLE = "kfp-distributed-train", "kfp-distributed-trainer", "kfp-distributed-deploy-model"
"""Names of the Role of the steps, of the one for Kubeflow Trainer, and of the one of the step `deploy_model`."""

Action = Literal["keep", "create", "update", "replace", "delete"]

DEFAULT_ACCOUNT = STEP_ACCOUNT
"""The ServiceAccount of steps in a Kubeflow Pipelines that is installed without Kubeflow profiles."""

_WORDS: dict[Action, tuple[str, str]] = {
    "keep": ("unchanged", "unchanged"),
    "create": ("created", "would create"),
    "update": ("updated", "would update"),
    "replace": ("replaced", "would replace"),
    "delete": ("deleted", "would delete"),
}


class Change(NamedTuple):
    """Planned change of one object.

    Attributes:
        action: "replace" deletes the object and creates it again.
        object: The object after the change; before it, if it is deleted.
        reason: Why it is updated, replaced or deleted; "" for the other actions.
    """

    action: Action
    object: Object
    reason: str = ""


def installed_objects(namespace: str, account: str, *, trainer: bool = False, deploy: bool = False) -> list[Object]:
    """Return the Roles, the RoleBindings and, as the last one, the ConfigMap with the library that is installed here.

    Args:
        namespace: Their namespace; "" for objects that name none.
        account: The ServiceAccount of the steps.
        trainer: Whether to add the Role and the RoleBinding for Kubeflow Trainer. Default: False.
        deploy: Whether to add the Role and the RoleBinding of the step `deploy_model`. Default: False.
    """
    objects: list[Object] = []
    wanted = {"rbac.yaml": True, "trainer.yaml": trainer, "deploy-model.yaml": deploy}
    for file in (name for name, is_wanted in wanted.items() if is_wanted):
        text = (files("kfp_distributed.deploy") / file).read_text(encoding="utf-8")
        role, binding = yaml.safe_load_all(text)
        objects += [role, {**binding, "subjects": [{"kind": "ServiceAccount", "name": account}]}]
    objects.append(library_config_map(namespace))
    for item in objects:
        item["metadata"].pop("namespace", None)
        if namespace:
            item["metadata"]["namespace"] = namespace
    return objects


def plan_install(objects: Sequence[Object], existing: Sequence[Object | None]) -> list[Change]:
    """Return the changes of `install`.

    Rules and subjects are added and never removed, because steps of another version or another account use them.

    Args:
        objects: Objects of `installed_objects`.
        existing: The objects of the same names in the namespace; None for each that does not exist.
    """
    planners = {"Role": _plan_role, "RoleBinding": _plan_binding, "ConfigMap": _plan_library}
    return [
        Change("create", item) if current is None else planners[item["kind"]](item, current)
        for item, current in zip(objects, existing, strict=True)
    ]


def _plan_role(role: Object, current: Object) -> Change:
    rules = current.get("rules") or []
    missing = [rule for rule in role["rules"] if rule not in rules]
    if not missing:
        return Change("keep", current)
    resources = ", ".join(resource for rule in missing for resource in rule["resources"])
    return Change("update", {**current, "rules": [*rules, *missing]}, f"adds rules for {resources}")


def _plan_binding(binding: Object, current: Object) -> Change:
    subjects = current.get("subjects") or []
    namespace = current["metadata"]["namespace"]
    bound = [(subject["kind"], subject["name"], subject.get("namespace") or namespace) for subject in subjects]
    missing = [subject for subject in binding["subjects"] if (subject["kind"], subject["name"], namespace) not in bound]
    if current["roleRef"] != binding["roleRef"]:
        # Kubernetes does not change the role of a binding.
        role = "{kind} {name}".format(**current["roleRef"])
        return Change("replace", {**binding, "subjects": [*subjects, *missing]}, f"it was bound to {role}")
    if not missing:
        return Change("keep", current)
    accounts = ", ".join(subject["name"] for subject in missing)
    return Change("update", {**current, "subjects": [*subjects, *missing]}, f"adds the service account {accounts}")


def _plan_library(config_map: Object, current: Object) -> Change:
    fault = library_fault(current, config_map["metadata"]["annotations"][HASH_ANNOTATION])
    return Change("replace", config_map, fault) if fault else Change("keep", current)


def plan_prune(libraries: Sequence[Object], current: str, now: datetime, age: timedelta) -> list[Change]:
    """Return the deletion of the libraries of other versions that are older than an age.

    Args:
        libraries: The ConfigMaps with libraries in a namespace.
        current: Name of the library that is installed here, which is never deleted.
        now: The time, with a time zone.
        age: Libraries created longer ago are deleted.
    """
    return [
        Change("delete", library, f"it was created on {created:%Y-%m-%d}")
        for library in libraries
        if library["metadata"]["name"] != current and now - (created := _creation_time(library)) > age
    ]


def _creation_time(item: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(item["metadata"]["creationTimestamp"])


def plan_uninstall(existing: Sequence[Object | None]) -> list[Change]:
    """Return the deletion of the objects that exist."""
    return [Change("delete", item) for item in existing if item is not None]


def libraries_of_version(libraries: Sequence[Object], version: str) -> list[Object]:
    """Return the libraries of one version.

    Args:
        libraries: The ConfigMaps with libraries in a namespace.
        version: Version, such as "0.1.0", whose builds may have several ConfigMaps. Or the name of one ConfigMap, with
            or without "kfp-distributed-".
    """
    return [
        library
        for library in libraries
        if version in (library["metadata"]["labels"].get(VERSION_LABEL), library["metadata"]["name"])
        or library["metadata"]["name"] == f"kfp-distributed-{version}"
    ]


def change_line(change: Change, *, dry_run: bool) -> str:
    """Return the line that reports a change."""
    item = change.object
    line = f"{_WORDS[change.action][dry_run]} {item['kind']} {item['metadata']['name']}"
    return f"{line}: {change.reason}" if change.reason else line
