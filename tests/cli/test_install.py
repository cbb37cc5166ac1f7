"""`kfp-distributed install` and `uninstall`: what they say, and what they change."""

from copy import deepcopy
from functools import cache

import pytest
import yaml
from click.testing import CliRunner
from namespace_api import NamespaceApi

from kfp_distributed.cli import options
from kfp_distributed.cli.main import main
from kfp_distributed.cli.setup import installation
from kfp_distributed.cli.setup.installation import installed_objects

pytestmark = pytest.mark.takes(13)

OBJECTS = installed_objects("team", "pipeline-runner")
LIBRARY = OBJECTS[2]["metadata"]["name"]
ROLE, CONFIG_MAP = "kfp-distributed-train", f"configmaps/{LIBRARY}"
OLD = {
    **OBJECTS[2],
    "metadata": {
        **OBJECTS[2]["metadata"],
        "name": "kfp-distributed-0.0.9-a",
        "creationTimestamp": "2020-01-01T00:00:00Z",
    },
}
FOREIGN = {"kind": "ConfigMap", "metadata": {"name": "kfp-launcher", "creationTimestamp": "2020-01-01T00:00:00Z"}}


library_config_map = cache(installation.library_config_map)


@pytest.fixture(autouse=True)
def _library(monkeypatch):
    """Make the archive of the library once. It takes half a second, and is equal for all tests."""
    monkeypatch.setattr(installation, "library_config_map", lambda namespace: deepcopy(library_config_map(namespace)))


@pytest.fixture
def api(monkeypatch):
    api = NamespaceApi()
    monkeypatch.setattr(options, "connect", lambda namespace: api)
    return api


def run(*arguments):
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    return done.exit_code, done.output.splitlines()


def objects_in(text):
    """Parse YAML. The parser in C takes a hundredth of the time for a library as one scalar."""
    return list(yaml.load_all(text, yaml.CSafeLoader))


def test_a_dry_run_then_a_first_then_a_second_run(api):
    code, lines = run("install", "--dry-run")
    expected = [f"would create Role {ROLE}", f"would create RoleBinding {ROLE}", f"would create ConfigMap {LIBRARY}"]
    assert (code, lines[:3], api.changes) == (0, expected, [])
    assert lines[3:] == ["Dry run: nothing was changed in namespace team."]

    code, lines = run("install")
    assert (code, lines[:3]) == (0, [line.replace("would create", "created") for line in expected])
    assert lines[3] == f"Namespace team now has the library {LIBRARY} and the permissions of its steps."
    assert lines[4].endswith(": kfp-distributed doctor --namespace team --service-account pipeline-runner")
    assert list(api.objects.values()) == OBJECTS

    api.changes.clear()
    code, lines = run("install")
    assert (code, lines[:3]) == (0, [line.replace("would create", "unchanged") for line in expected])
    assert lines[3] == f"Namespace team already had the library {LIBRARY} and the permissions of its steps."
    assert api.changes == []


def test_a_tampered_library_is_created_again_and_another_version_stays(api):
    api.add(*OBJECTS[:2], {**OBJECTS[2], "binaryData": {}}, OLD)
    code, lines = run("install")
    assert (code, lines[2]) == (0, f"replaced ConfigMap {LIBRARY}: it has no library.zip")
    assert api.changes == [f"delete {CONFIG_MAP}", f"create {CONFIG_MAP}"]
    assert api.objects["configmaps", OLD["metadata"]["name"]] == OLD


def test_prune_only_deletes_old_libraries(api):
    current = {**OBJECTS[2], "metadata": {**OBJECTS[2]["metadata"], "creationTimestamp": "2020-01-01T00:00:00Z"}}
    api.add(*OBJECTS[:2], current, OLD, FOREIGN)
    code, lines = run("install", "--prune", "30d")
    assert (code, lines[3]) == (0, "deleted ConfigMap kfp-distributed-0.0.9-a: it was created on 2020-01-01")
    assert api.changes == ["delete configmaps/kfp-distributed-0.0.9-a"]


@pytest.mark.parametrize("age", ["30", "d", "1.5d", "-1d", "30 d", "999999d"])
def test_an_invalid_age_is_refused(age):
    code, lines = run("install", "--prune", age)
    assert (code, lines) == (
        2,
        [f"Error: --prune {age!r} is not an age; pass a number of days or hours, such as 30d or 12h"],
    )


def test_uninstall(api):
    api.add(*OBJECTS, OLD, FOREIGN)
    expected = [
        f"deleted RoleBinding {ROLE}",
        f"deleted Role {ROLE}",
        f"deleted ConfigMap {LIBRARY}",
        "deleted ConfigMap kfp-distributed-0.0.9-a",
    ]
    code, lines = run("uninstall", "--dry-run")
    assert (code, lines[:4], api.changes) == (0, [line.replace("deleted", "would delete") for line in expected], [])
    assert run("uninstall") == (0, expected)
    assert list(api.objects.values()) == [FOREIGN]
    assert run("uninstall") == (0, ["There is no installation of kfp-distributed in namespace team."])


@pytest.mark.parametrize(("option", "role"), [("trainer", "trainer"), ("deploy", "deploy-model")])
def test_other_permissions_are_opt_in_and_uninstalled_too(api, option, role):
    names = [f"Role kfp-distributed-{role}", f"RoleBinding kfp-distributed-{role}"]
    assert run("install")[0] == 0
    code, lines = run("install", f"--{option}")
    assert (code, lines[:5]) == (
        0,
        [
            f"unchanged Role {ROLE}",
            f"unchanged RoleBinding {ROLE}",
            *(f"created {name}" for name in names),
            f"unchanged ConfigMap {LIBRARY}",
        ],
    )
    assert run("install")[1][:3] == [lines[0], lines[1], lines[4]]
    code, lines = run("uninstall")
    assert (code, set(lines) >= {f"deleted {name}" for name in names}) == (0, True)
    assert api.objects == {}
    output = CliRunner().invoke(main, ["install", "--namespace", "team", f"--{option}", "--output", "yaml"]).output
    assert objects_in(output) == installed_objects("team", "pipeline-runner", **{option: True})


def library_of(version, hash_):
    labels = {**OLD["metadata"]["labels"], "app.kubernetes.io/version": version}
    return {**OLD, "metadata": {**OLD["metadata"], "name": f"kfp-distributed-{version}-{hash_}", "labels": labels}}


@pytest.mark.parametrize(
    ("version", "deleted"),
    [
        ("0.0.9", ["kfp-distributed-0.0.9-a", "kfp-distributed-0.0.9-b"]),
        ("0.0.9-b", ["kfp-distributed-0.0.9-b"]),
        ("kfp-distributed-0.0.9-b", ["kfp-distributed-0.0.9-b"]),
    ],
)
def test_uninstall_of_one_version_leaves_the_others(api, version, deleted):
    libraries = [library_of("0.0.9", "a"), library_of("0.0.9", "b"), library_of("0.0.90", "a")]
    api.add(*OBJECTS, *libraries, FOREIGN)
    code, lines = run("uninstall", "--version", version, "--dry-run")
    assert (code, lines, api.changes) == (
        0,
        [*(f"would delete ConfigMap {name}" for name in deleted), "Dry run: nothing was changed in namespace team."],
        [],
    )
    assert run("uninstall", "--version", version) == (0, [f"deleted ConfigMap {name}" for name in deleted])
    assert api.changes == [f"delete configmaps/{name}" for name in deleted]


@pytest.mark.parametrize(
    ("libraries", "has"),
    [
        ([], "no library"),
        ([library_of("0.0.9", "a"), library_of("0.1.0", "b")], "kfp-distributed-0.0.9-a, kfp-distributed-0.1.0-b"),
    ],
)
@pytest.mark.parametrize("version", ["0.0", "launcher"])
def test_uninstall_of_a_version_that_is_not_installed(api, version, libraries, has):
    api.add(*OBJECTS[:2], *libraries, FOREIGN)
    error = f"Error: --version {version!r} is not installed in namespace team, which has {has}"
    assert run("uninstall", "--version", version) == (2, [error])
    assert api.changes == []


def test_uninstall_of_an_empty_version_deletes_nothing(api):
    """As of an unset variable of a shell."""
    api.add(*OBJECTS)
    error = f"Error: --version '' is not installed in namespace team, which has {LIBRARY}"
    assert run("uninstall", "--version", "") == (2, [error])
    assert api.changes == []


RBAC = "rbac.authorization.k8s.io"


@pytest.mark.parametrize(
    ("command", "denied", "missing"),
    [
        ("install", ["get roles", "get configmaps"], f"get roles.{RBAC}, get configmaps"),
        (
            "install",
            ["create roles", "create rolebindings", "create configmaps"],
            f"create roles.{RBAC}, create rolebindings.{RBAC}, create configmaps",
        ),
        (
            "install",
            ["grant roles", "grant rolebindings"],
            f"create roles.{RBAC} with permissions that it lacks itself (verb escalate on roles.{RBAC}), "
            f"create rolebindings.{RBAC} with permissions that it lacks itself (verb bind on roles.{RBAC})",
        ),
        ("uninstall", ["list configmaps"], "list configmaps"),
    ],
)
def test_missing_permissions_are_named_before_anything_changes(api, command, denied, missing):
    api.denied = denied
    code, lines = run(command)
    assert code == 1
    assert lines == [
        f"Error: this account may not, in namespace team: {missing}. Nothing was changed. Ask an administrator of the "
        "namespace for these permissions, or to run this command"
    ]
    assert api.changes == []


def test_permissions_that_are_not_needed_are_not_required(api):
    api.denied = ["delete configmaps", "update roles", "update rolebindings", "list configmaps"]
    assert run("install")[0] == 0


def test_a_missing_namespace_is_an_error(api):
    api.exists = False
    assert run("install") == (1, ["Error: there is no namespace team; create it: kubectl create namespace team"])


def test_the_objects_as_yaml_need_no_cluster(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    done = CliRunner().invoke(main, ["install", "--namespace", "team", "--output", "yaml"])
    assert objects_in(done.output) == OBJECTS
    done = CliRunner().invoke(main, ["install", "--service-account", "default-editor", "--output", "yaml"])
    assert objects_in(done.output) == installed_objects("", "default-editor")
    assert run("install", "--output", "yaml", "--prune", "1d")[0] == 2
