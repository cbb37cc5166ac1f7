"""`kfp-distributed install`, `uninstall` and `doctor --pipeline` on a real API server."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from kubernetes import client

from kfp_distributed.cli.main import main
from kfp_distributed.cli.setup.installation import DEFAULT_ACCOUNT, Object, installed_objects, plan_uninstall
from kfp_distributed.cli.setup.namespace import Namespace
from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.components.kfp_interface.packaging import bootstrap
from kfp_distributed.library.archive import library_config_map, library_name
from kfp_distributed.library.content import content_hash, read_library

pytestmark = pytest.mark.cluster

LIBRARY = library_name(content_hash(read_library()))
ROLE = "kfp-distributed-train"
INSTALLED = [f"Role {ROLE}", f"RoleBinding {ROLE}", f"ConfigMap {LIBRARY}"]


def run(*arguments, code=0):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result.output.splitlines()


def libraries(api, namespace) -> dict[str, Object]:
    """Return UID and content of the ConfigMaps with libraries, by name."""
    items = api.list_namespaced_config_map(namespace, label_selector="app.kubernetes.io/component=library").items
    return {item.metadata.name: (item.metadata.uid, item.binary_data) for item in items}


def create_other_library(api, namespace, name="kfp-distributed-0.0.9-0123456789ab"):
    item = library_config_map(namespace)
    item["metadata"]["name"] = name
    api.create_namespaced_config_map(namespace, item)
    return name


def test_install_twice_then_uninstall_twice(api, namespace):
    option = ("--namespace", namespace)
    assert run("install", *option, "--dry-run")[:3] == [f"would create {name}" for name in INSTALLED]
    assert libraries(api, namespace) == {}
    assert run("install", *option)[:3] == [f"created {name}" for name in INSTALLED]
    before = libraries(api, namespace)
    assert run("install", *option)[:3] == [f"unchanged {name}" for name in INSTALLED]
    assert libraries(api, namespace) == before
    other = create_other_library(api, namespace)
    deleted = [f"deleted RoleBinding {ROLE}", f"deleted Role {ROLE}"]
    deleted += [f"deleted ConfigMap {name}" for name in sorted([LIBRARY, other])]
    would_delete = run("uninstall", *option, "--dry-run")[:-1]
    assert sorted(would_delete) == sorted(line.replace("deleted", "would delete") for line in deleted)
    assert libraries(api, namespace).keys() == {LIBRARY, other}
    assert sorted(run("uninstall", *option)) == sorted(deleted)
    assert libraries(api, namespace) == {}
    assert run("uninstall", *option) == [f"There is no installation of kfp-distributed in namespace {namespace}."]


def test_a_concurrent_install_is_detected(namespace, monkeypatch):
    read, outdated = Namespace.read, []

    def read_before_other_install(self, objects):
        existing = read(self, objects)
        if not outdated:
            outdated.append(existing)
            run("install", "--namespace", namespace)
        return existing

    monkeypatch.setattr(Namespace, "read", read_before_other_install)
    lines = run("install", "--namespace", namespace)
    assert lines[1:4] == [f"unchanged {name}" for name in INSTALLED]
    assert outdated == [[None] * 3]


def test_a_deletion_does_not_delete_a_new_object_of_the_same_name(api, namespace):
    name = create_other_library(api, namespace)
    target = Namespace(connect(namespace), namespace)
    deletion = plan_uninstall(target.libraries())
    api.delete_namespaced_config_map(name, namespace)
    create_other_library(api, namespace)
    with pytest.raises(ClusterError) as error:
        target.apply(deletion)
    assert (error.value.status, list(libraries(api, namespace))) == (409, [name])


def test_install_adds_rules_and_accounts_and_keeps_existing_ones(namespace):
    rbac = client.RbacAuthorizationV1Api()
    own_rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["keys"], "verbs": ["get"]}
    run("install", "--namespace", namespace)
    rules = rbac.read_namespaced_role(ROLE, namespace).rules
    rbac.patch_namespaced_role(ROLE, namespace, {"rules": [own_rule]})
    lines = run("install", "--namespace", namespace, "--service-account", "default-editor")
    assert [line.partition(":")[0] for line in lines[:2]] == [f"updated {name}" for name in INSTALLED[:2]]
    changed = rbac.read_namespaced_role(ROLE, namespace).rules
    assert (changed[0].resource_names, changed[1:]) == (["keys"], rules)
    subjects = rbac.read_namespaced_role_binding(ROLE, namespace).subjects
    assert [subject.name for subject in subjects] == ["pipeline-runner", "default-editor"]


def test_a_library_with_other_content_is_replaced(api, namespace):
    run("install", "--namespace", namespace)
    ((original_uid, data),) = libraries(api, namespace).values()
    api.delete_namespaced_config_map(LIBRARY, namespace)
    tampered = library_config_map(namespace)
    tampered["binaryData"] = {"library.zip": data["library.zip"][: len(data["library.zip"]) // 8 * 4]}
    api.create_namespaced_config_map(namespace, tampered)
    before = libraries(api, namespace)
    would_replace = run("install", "--namespace", namespace, "--dry-run")[2]
    assert would_replace.startswith(f"would replace ConfigMap {LIBRARY}: its library.zip cannot be read: ")
    assert libraries(api, namespace) == before
    assert run("install", "--namespace", namespace)[2].startswith(f"replaced ConfigMap {LIBRARY}: ")
    ((uid, replaced),) = libraries(api, namespace).values()
    assert replaced == data
    assert uid != original_uid


def test_prune_keeps_the_installed_version_and_younger_ones(api, namespace):
    run("install", "--namespace", namespace)
    other = create_other_library(api, namespace)
    time.sleep(1.1)  # Creation times have a resolution of one second.
    run("install", "--namespace", namespace, "--prune", "1h")
    assert set(libraries(api, namespace)) == {LIBRARY, other}
    assert run("install", "--namespace", namespace, "--prune", "0h")[3].startswith(f"deleted ConfigMap {other}: ")
    assert set(libraries(api, namespace)) == {LIBRARY}


def test_install_changes_nothing_after_kubectl_has_applied_its_yaml(namespace):
    for options, kubectl_options in ((["--namespace", namespace], []), ([], ["--namespace", namespace])):
        text = CliRunner().invoke(main, ["install", "--output", "yaml", *options]).output
        command = ["kubectl", "apply", *kubectl_options, "--server-side", "--filename", "-"]
        subprocess.run(command, input=text, text=True, check=True, capture_output=True)
        assert run("install", "--namespace", namespace)[:3] == [f"unchanged {name}" for name in INSTALLED]


def test_doctor_names_a_missing_library_and_the_command_that_installs_it(api, namespace, tmp_path):
    run("compile", str(tmp_path))
    doctor = ("doctor", "--namespace", namespace, "--pipeline", str(tmp_path / "train_and_export.yaml"))

    def library_lines():
        lines = CliRunner().invoke(main, doctor).output.splitlines()
        number = next(number for number, line in enumerate(lines) if " library: " in line)
        return lines[number : number + 2]

    steps = "evaluate, export-model, fingerprint-source, prepare-data, train"
    fault, advice = library_lines()
    assert fault == f"failed   library: there is no ConfigMap {namespace}/{LIBRARY} with the library of {steps}"
    assert advice == f"         -> kfp-distributed install --namespace {namespace}"
    run(*advice.split()[2:])
    assert library_lines()[0] == f"ok       library: ConfigMap {namespace}/{LIBRARY} has the library of {steps}"
    api.delete_namespaced_config_map(LIBRARY, namespace)
    api.create_namespaced_config_map(namespace, {**library_config_map(namespace), "binaryData": {}})
    assert library_lines()[0].endswith(": it has no library.zip")


@pytest.fixture
def account(api, namespace):
    """A function that creates a service account and returns its token."""

    def create(name):
        api.create_namespaced_service_account(namespace, {"metadata": {"name": name}})
        return api.create_namespaced_service_account_token(name, namespace, {"spec": {}}).status.token

    return create


def connect_with(token, namespace):
    configuration = client.Configuration.get_default_copy()
    configuration.api_key = {"authorization": f"Bearer {token}"}
    configuration.cert_file = configuration.key_file = None
    return ClusterApi(configuration, namespace)


def test_each_missing_permission_is_named(account, namespace):
    target = Namespace(connect_with(account("powerless"), namespace), namespace)
    objects = installed_objects(namespace, DEFAULT_ACCOUNT)
    missing = "get roles.rbac.authorization.k8s.io, get rolebindings.rbac.authorization.k8s.io, get configmaps. "
    with pytest.raises(ClusterError, match=re.escape(f"may not, in namespace {namespace}: {missing}")):
        target.read(objects)
    with pytest.raises(ClusterError, match=r"may not, in namespace .*: list configmaps\."):
        target.libraries()


def test_an_account_can_only_grant_its_own_permissions(account, namespace, monkeypatch):
    """The account is that of an administrator of a namespace, without the verbs escalate and bind."""
    api = connect_with(account("editor"), namespace)
    monkeypatch.setattr("kfp_distributed.cli.options.connect", lambda namespace: api)
    rbac, metadata = client.RbacAuthorizationV1Api(), {"metadata": {"name": "editor"}}
    groups, resources = ["", "rbac.authorization.k8s.io"], ["roles", "rolebindings", "configmaps"]
    rules = [{"apiGroups": groups, "resources": resources, "verbs": ["get", "create"]}]
    rbac.create_namespaced_role(namespace, {**metadata, "rules": rules})
    role = {"kind": "Role", "name": "editor", "apiGroup": "rbac.authorization.k8s.io"}
    subject = {"kind": "ServiceAccount", "name": "editor"}
    rbac.create_namespaced_role_binding(namespace, {**metadata, "roleRef": role, "subjects": [subject]})

    def install_until(text):
        """Retry until the output contains a text, because the API server applies new permissions with a delay."""
        deadline = time.monotonic() + 120
        while text not in (output := CliRunner().invoke(main, ["install"]).output) and time.monotonic() < deadline:
            time.sleep(0.5)
        return output

    missing = "create roles.rbac.authorization.k8s.io with permissions that it lacks itself (verb escalate "
    refused = install_until(missing)
    assert missing in refused
    assert "Nothing was changed." in refused
    with pytest.raises(client.ApiException, match="Not Found"):
        rbac.read_namespaced_role(ROLE, namespace)
    rules += installed_objects(namespace, DEFAULT_ACCOUNT)[0]["rules"]
    rbac.patch_namespaced_role("editor", namespace, {"rules": rules})
    assert "now has the" in install_until("now has the")


def test_install_refuses_a_missing_namespace():
    name = "kfp-distributed-missing"
    error = f"Error: there is no namespace {name}; create it: kubectl create namespace {name}"
    assert run("install", "--namespace", name, code=1) == [error]


def test_the_permissions_of_the_role_suffice_to_import_the_library(account, namespace, tmp_path):
    """The bootstrap of a compiled step runs here, with the token of the account and the address of the API server."""
    configuration = client.Configuration.get_default_copy()
    for name, text in (("namespace", namespace), ("token", account(DEFAULT_ACCOUNT))):
        (tmp_path / name).write_text(text)
    (tmp_path / "ca.crt").write_bytes(Path(configuration.ssl_ca_cert).read_bytes())
    program = bootstrap().replace("/var/run/secrets/kubernetes.io/serviceaccount/", f"{tmp_path}/")
    program += "\nimport kfp_distributed.library.content as content; print(content.__file__)\n"
    server = urlsplit(configuration.host)
    address = {"KUBERNETES_SERVICE_HOST": server.hostname, "KUBERNETES_SERVICE_PORT": str(server.port or 443)}

    def step():
        command = [sys.executable, "-I", "-S", "-c", program]
        return subprocess.run(command, env={**os.environ, **address}, capture_output=True, text=True, check=False)

    refused = step()
    assert refused.returncode == 1
    assert f"ConfigMap {namespace}/{LIBRARY}: configmaps" in refused.stderr
    command = f"run kfp-distributed install --namespace {namespace} --service-account pipeline-runner"
    assert refused.stderr.rstrip().endswith(command)
    run("install", "--namespace", namespace)
    deadline = time.monotonic() + 120
    while "forbidden" in (result := step()).stderr and time.monotonic() < deadline:
        time.sleep(0.5)
    assert result.stdout.endswith("/kfp_distributed/library/content.py\n"), result.stderr
    assert not result.stdout.startswith(str(Path(__file__).parents[2]))
