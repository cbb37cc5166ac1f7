"""What install changes, by whole changes."""

import base64
import io
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from kfp_distributed.cli.setup.installation import (
    Change,
    change_line,
    installed_objects,
    plan_install,
    plan_prune,
    plan_uninstall,
)
from kfp_distributed.cli.setup.libraries import library_fault
from kfp_distributed.library.archive import library_config_map, make_archive, make_small_archive
from kfp_distributed.library.content import content_hash

pytestmark = pytest.mark.takes(12)

RULES = yaml.safe_load(Path(__file__).parents[2].joinpath("deploy", "rbac.yaml").read_text().split("---")[0])["rules"]
OBJECTS = ROLE, BINDING, LIBRARY = installed_objects("team", "pipeline-runner")
RUNNER, EDITOR = ({"kind": "ServiceAccount", "name": name} for name in ("pipeline-runner", "default-editor"))


def test_the_objects():
    about = {"name": "kfp-distributed-train", "namespace": "team"}
    version = "rbac.authorization.k8s.io/v1"
    assert installed_objects("team", "default-editor") == [
        {"apiVersion": version, "kind": "Role", "metadata": about, "rules": RULES},
        {
            "apiVersion": version,
            "kind": "RoleBinding",
            "metadata": about,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "kfp-distributed-train"},
            "subjects": [EDITOR],
        },
        library_config_map("team"),
    ]


@pytest.mark.parametrize(
    ("option", "file", "name"),
    [
        ("trainer", "trainer.yaml", "kfp-distributed-trainer"),
        ("deploy", "deploy-model.yaml", "kfp-distributed-deploy-model"),
    ],
)
def test_other_objects_are_added_on_request(option, file, name):
    deploy = Path(__file__).parents[2] / "deploy"
    role, binding = yaml.safe_load_all((deploy / file).read_text())
    about = {"name": name, "namespace": "team"}
    added = [{**role, "metadata": about}, {**binding, "metadata": about, "subjects": [EDITOR]}]
    objects = installed_objects("team", "default-editor")
    assert installed_objects("team", "default-editor", **{option: True}) == [*objects[:2], *added, objects[2]]


def test_without_a_namespace_the_objects_have_none():
    objects = installed_objects("", "pipeline-runner")
    assert [item["metadata"].get("namespace") for item in objects] == [None, None, None]
    assert [{**item["metadata"], "namespace": "team"} for item in objects] == [item["metadata"] for item in OBJECTS]


def planned(*existing):
    return plan_install(OBJECTS, existing)


def test_an_empty_namespace_gets_all_objects():
    assert planned(None, None, None) == [Change("create", item) for item in OBJECTS]


def test_existing_objects_are_kept():
    assert planned(*OBJECTS) == [Change("keep", item) for item in OBJECTS]


def test_missing_rules_are_added_and_other_rules_stay():
    other = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["keys"], "verbs": ["get"]}
    current = {**ROLE, "rules": [other, *RULES[2:]]}
    updated = {**ROLE, "rules": [other, *RULES[2:], *RULES[:2]]}
    reason = "adds rules for tfjobs, mpijobs, pytorchjobs, jobs"
    assert planned(current, BINDING, LIBRARY)[0] == Change("update", updated, reason)
    assert planned({**ROLE, "rules": None}, BINDING, LIBRARY)[0].object == ROLE


def test_an_account_is_added_and_other_accounts_stay():
    current = {**BINDING, "subjects": [EDITOR]}
    updated = {**BINDING, "subjects": [EDITOR, RUNNER]}
    assert planned(ROLE, current, LIBRARY)[1] == Change("update", updated, "adds the service account pipeline-runner")


@pytest.mark.parametrize(("namespace", "action"), [("team", "keep"), ("other", "update")])
def test_accounts_are_compared_with_their_namespaces(namespace, action):
    current = {**BINDING, "subjects": [{**RUNNER, "namespace": namespace}]}
    assert planned(ROLE, current, LIBRARY)[1].action == action


def test_a_binding_of_another_role_is_replaced_and_keeps_its_accounts():
    current = {**BINDING, "subjects": [EDITOR], "roleRef": {"kind": "ClusterRole", "name": "edit"}}
    updated = {**BINDING, "subjects": [EDITOR, RUNNER]}
    assert planned(ROLE, current, LIBRARY)[1] == Change("replace", updated, "it was bound to ClusterRole edit")


CONTENT = {"kfp_distributed/a.py": b"x = 1\n" * 100, "kfp_distributed/b.py": b"y = 2\n"}


def config_map(archive):
    return {"binaryData": {"library.zip": base64.b64encode(archive).decode()}}


def stored(content):
    """The archive as another zlib would write it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for path, data in content.items():
            archive.writestr(path, data)
    return file.getvalue()


@pytest.mark.parametrize("archive", [make_small_archive(CONTENT), make_archive(CONTENT), stored(CONTENT)])
def test_only_the_content_of_an_archive_is_compared(archive):
    assert library_fault(config_map(archive), content_hash(CONTENT)) == ""


OTHER = {**CONTENT, "kfp_distributed/a.py": b"x = 2\n"}


def damaged(archive, first_file):
    changed = bytearray(archive)
    changed[changed.index(first_file) + len(first_file) + 1] ^= 0xFF  # In the compressed data.
    return bytes(changed)


@pytest.mark.parametrize(
    ("item", "fault"),
    [
        ({}, "it has no library.zip"),
        ({"binaryData": None}, "it has no library.zip"),
        ({"binaryData": {"library.zip": "@@@@"}}, "its library.zip cannot be read: "),
        (config_map(b""), "its library.zip cannot be read: File is not a zip file"),
        (config_map(make_archive(CONTENT)[:-50]), "its library.zip cannot be read: "),
        (config_map(damaged(make_archive(CONTENT), b"a.py")), "its library.zip cannot be read: "),
        (config_map(damaged(make_small_archive(CONTENT), b"library.zip")), "its library.zip cannot be read: "),
        (
            config_map(make_archive(OTHER)),
            f"its content has the hash {content_hash(OTHER)[:12]}, not {content_hash(CONTENT)[:12]}",
        ),
    ],
)
def test_a_fault_of_a_library(item, fault):
    assert library_fault(item, content_hash(CONTENT)).startswith(fault)


def test_a_library_with_a_fault_is_replaced():
    assert planned(ROLE, BINDING, {**LIBRARY, "binaryData": {}})[2] == Change(
        "replace", LIBRARY, "it has no library.zip"
    )


def test_old_libraries_of_other_versions_are_pruned():
    def library(name, created):
        return {"kind": "ConfigMap", "metadata": {"name": name, "creationTimestamp": created}}

    libraries = [
        library("kfp-distributed-0.1.0-a", "2026-01-01T00:00:00Z"),
        library("kfp-distributed-0.2.0-b", "2026-01-20T00:00:00Z"),
        library("kfp-distributed-0.3.0-c", "2026-01-01T00:00:00Z"),
    ]
    now = datetime(2026, 1, 31, 0, 0, 1, tzinfo=UTC)
    pruned = plan_prune(libraries, "kfp-distributed-0.3.0-c", now, timedelta(days=30))
    assert pruned == [Change("delete", libraries[0], "it was created on 2026-01-01")]
    everything = plan_prune(libraries, "kfp-distributed-0.3.0-c", now, timedelta())
    assert [change.object["metadata"]["name"][-1] for change in everything] == ["a", "b"]
    assert plan_prune(libraries, "kfp-distributed-0.3.0-c", now, timedelta(days=31)) == []


def test_uninstall_deletes_what_exists():
    assert plan_uninstall([None, ROLE, LIBRARY]) == [Change("delete", ROLE), Change("delete", LIBRARY)]


@pytest.mark.parametrize(
    ("change", "line", "dry_run_line"),
    [
        (
            Change("create", ROLE),
            "created Role kfp-distributed-train",
            "would create Role kfp-distributed-train",
        ),
        (
            Change("replace", BINDING, "it was bound to Role a"),
            "replaced RoleBinding kfp-distributed-train: it was bound to Role a",
            "would replace RoleBinding kfp-distributed-train: it was bound to Role a",
        ),
        (
            Change("keep", ROLE),
            "unchanged Role kfp-distributed-train",
            "unchanged Role kfp-distributed-train",
        ),
    ],
)
def test_the_line_of_a_change(change, line, dry_run_line):
    assert change_line(change, dry_run=False) == line
    assert change_line(change, dry_run=True) == dry_run_line
