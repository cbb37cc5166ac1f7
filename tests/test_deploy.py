"""What a cluster needs, deploy/ and images/: the Role grants what the steps request, the images are built as named."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from kfp_distributed.components.deploy_model.service_checks import PERMISSIONS
from kfp_distributed.components.train.describe.manifests import job_kind
from kfp_distributed.components.train.describe.manifests.train_job import TRAIN_JOB
from kfp_distributed.components.train.run.runners.kubernetes.create.choose_operator import own_permissions
from kfp_distributed.components.train.run.runners.kubernetes.create.preflight import needed_permissions

pytestmark = pytest.mark.takes(5)

ROOT = Path(__file__).parent.parent
IMAGES = sorted(path.parent for path in (ROOT / "images").glob("*/Containerfile"))
ROLE, BINDING = yaml.safe_load_all((ROOT / "deploy" / "rbac.yaml").read_text())
TRAINER_ROLE, TRAINER_BINDING = yaml.safe_load_all((ROOT / "deploy" / "trainer.yaml").read_text())
DEPLOY_ROLE, DEPLOY_BINDING = yaml.safe_load_all((ROOT / "deploy" / "deploy-model.yaml").read_text())
ROLES = pytest.mark.parametrize(
    ("file", "role"),
    [("rbac.yaml", ROLE), ("trainer.yaml", TRAINER_ROLE), ("deploy-model.yaml", DEPLOY_ROLE)],
)


@pytest.mark.parametrize(
    "kind", [job_kind("Job", None), job_kind("TF", None), job_kind("PyTorch", None), job_kind("MPI", "v1")]
)
def test_role_grants_the_permissions_that_the_step_checks(kind):
    granted = granted_permissions("resourceNames" not in rule for rule in ROLE["rules"])
    assert set(needed_permissions(kind)) <= {*granted}


@ROLES
def test_every_rule_has_a_comment(file, role):
    lines = (ROOT / "deploy" / file).read_text().splitlines()
    first_lines = [number for number, line in enumerate(lines) if line.startswith("  - apiGroups:")]
    assert len(first_lines) == len(role["rules"])
    assert all(lines[number - 1].startswith("  # ") for number in first_lines)


@ROLES
def test_every_verb_has_a_reason(file, role):
    lines = (ROOT / "deploy" / file).read_text().partition("\n---\n")[0].splitlines()
    verbs = [match[1] for line in lines if (match := re.fullmatch(r"      - (\w+)  # \S.*", line))]
    assert verbs == [verb for rule in role["rules"] for verb in rule["verbs"]]


def test_role_of_trainer_grants_what_a_train_job_needs_besides_the_other_role():
    granted = [
        (verb, group, resource)
        for rule in TRAINER_ROLE["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    ]
    assert granted == own_permissions(TRAIN_JOB)
    others = granted_permissions("resourceNames" not in rule for rule in ROLE["rules"])
    assert set(needed_permissions(TRAIN_JOB, claims=True)) <= {*granted, *others}
    assert {group for _, group, _ in others} == {"", "batch", "kubeflow.org"}


def test_role_of_trainer_is_bound_to_the_accounts_of_the_other_role():
    assert TRAINER_BINDING["subjects"] == BINDING["subjects"]
    remote = yaml.safe_load((ROOT / "deploy" / "remote-trainer.yaml").read_text())
    *_, other = yaml.safe_load_all((ROOT / "deploy" / "remote.yaml").read_text())
    assert remote["subjects"] == other["subjects"]
    role = {**BINDING["roleRef"], "name": TRAINER_ROLE["metadata"]["name"]}
    assert [TRAINER_BINDING["roleRef"], remote["roleRef"]] == [role, role]
    assert not any("namespace" in item["metadata"] for item in (TRAINER_ROLE, TRAINER_BINDING, remote))


def test_role_grants_nothing_but_what_the_steps_request():
    kinds = [job_kind(name, "v1") for name in ("Job", "TF", "PyTorch", "MPI")]
    needed = {permission for kind in kinds for permission in needed_permissions(kind, claims=True)}
    assert set(granted_permissions("resourceNames" not in rule for rule in ROLE["rules"])) == needed
    named = {("get", "", "services"), ("get", "", "secrets")}
    assert set(granted_permissions("resourceNames" in rule for rule in ROLE["rules"])) == named


def test_role_of_trainer_grants_what_a_train_job_needs_besides():
    others = needed_permissions(job_kind("Job"), claims=True)
    needed = {permission for permission in needed_permissions(TRAIN_JOB, claims=True) if permission not in others}
    rules = TRAINER_ROLE["rules"]
    assert set(granted_permissions([True] * len(rules), rules)) == needed


def test_role_of_deploy_model_grants_exactly_what_a_deployment_checks():
    rules = DEPLOY_ROLE["rules"]
    assert granted_permissions([True] * len(rules), rules) == PERMISSIONS
    assert DEPLOY_BINDING["subjects"] == BINDING["subjects"]
    assert DEPLOY_BINDING["roleRef"] == {**BINDING["roleRef"], "name": DEPLOY_ROLE["metadata"]["name"]}
    assert not any("namespace" in item["metadata"] for item in (DEPLOY_ROLE, DEPLOY_BINDING))


def granted_permissions(counts, rules=ROLE["rules"]):
    """Return (verb, API group, resource) of the rules of a Role that count."""
    return [
        (verb, group, resource)
        for rule, is_counted in zip(rules, counts, strict=True)
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if is_counted
    ]


def test_role_grants_no_dangerous_permissions():
    granted = {(resource, verb) for rule in ROLE["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert not any("*" in rule for rule in granted)
    assert {verb for resource, verb in granted if resource == "pods"} == {"get", "list", "watch"}
    assert {verb for resource, verb in granted if resource == "secrets"} == {"get"}
    assert all(rule.get("resourceNames") for rule in ROLE["rules"] if "secrets" in rule["resources"])


def test_role_is_bound_to_the_service_account_of_steps_in_any_namespace():
    assert ROLE["kind"] == "Role"
    assert BINDING["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "Role",
        "name": "kfp-distributed-train",
    }
    assert BINDING["subjects"] == [{"kind": "ServiceAccount", "name": "pipeline-runner"}]
    assert not any("namespace" in document["metadata"] for document in (ROLE, BINDING))
    kustomization = yaml.safe_load((ROOT / "deploy" / "kustomization.yaml").read_text())
    assert kustomization["resources"] == ["rbac.yaml"]


def test_roles_of_a_remote_cluster_are_bound_to_one_service_account():
    account, tokens, *_ = remote = list(yaml.safe_load_all((ROOT / "deploy" / "remote.yaml").read_text()))
    role, binding = yaml.safe_load_all((ROOT / "deploy" / "remote-object-store.yaml").read_text())
    bound = {item["roleRef"]["name"]: item["subjects"] for item in (remote[-1], binding)}
    subjects = [{"kind": "ServiceAccount", "name": account["metadata"]["name"]}]
    assert bound == {ROLE["metadata"]["name"]: subjects, role["metadata"]["name"]: subjects}
    # Kubernetes would write a token that never expires into a Secret of the type for tokens.
    assert tokens == {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kfp-distributed-remote-tokens"}}
    kind = job_kind("Job", None)
    additional = set(needed_permissions(kind, secret=True)) - set(needed_permissions(kind))
    granted = [
        (verb, group, resource)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    ]
    assert sorted(additional) == granted == [("create", "", "secrets"), ("delete", "", "secrets")]


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
class TestImage:
    def test_does_not_run_as_root(self, image):
        users = re.findall(r"^USER (.*)$", (image / "Containerfile").read_text(), re.MULTILINE)
        assert users[-1:] == ["1000"]

    def test_has_every_package_pinned(self, image):
        lines = (image / "requirements.txt").read_text().splitlines()
        packages = [line for line in lines if line and not line.startswith("#")]
        assert [line for line in packages if not re.match(r"[\w.-]+==[\w.]+(; .+)?$", line)] == []

    def test_missing_image_is_built_under_its_name(self, image):
        name = run_make("image-name", f"IMAGE={image.name}").strip()
        assert re.fullmatch(rf"kfp-distributed/{image.name}:[0-9a-f]{{12}}", name)
        missing = run_make("images", f"IMAGES={image.name}", "FIND=false", "BUILD=echo build")
        folder = f"images/{image.name}"
        base = run_make("image-name", "IMAGE=tensorflow").strip()
        contexts = {"steps": ".", "evaluate": f"--build-arg BASE={base} ."}
        context = {**contexts, "language-model": f"--build-arg PYTORCH=cuda {folder}"}.get(image.name, folder)
        assert missing.splitlines()[-2:] == [f"build {name} --file {folder}/Containerfile {context}", name]
        names = [base, name] if image.name == "evaluate" else [name]
        assert run_make("images", f"IMAGES={image.name}", "FIND=true", "BUILD=false").splitlines() == names


@pytest.mark.parametrize("file", ["ssh.conf", "sshd.conf"])
def test_images_with_horovod_have_equal_ssh_configurations(file):
    texts = [(ROOT / "images" / name / file).read_text() for name in ("horovod", "horovod-pytorch")]
    assert texts[0] == texts[1]


def test_changed_image_has_another_name(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / "images", tmp_path / "images")
    arguments = ("image-name", "IMAGE=tensorflow", "PREFIX=registry.example.com/team")
    before = run_make(*arguments, folder=tmp_path)
    assert before.startswith("registry.example.com/team/tensorflow:")
    (tmp_path / "images" / "horovod" / "requirements.txt").write_text("numpy==2.0.0\n")
    assert run_make(*arguments, folder=tmp_path) == before
    (tmp_path / "images" / "tensorflow" / "requirements.txt").write_text("numpy==2.0.0\n")
    assert run_make(*arguments, folder=tmp_path) != before


def run_make(*arguments: str, folder: Path = ROOT) -> str:
    """Run make with a Makefile of the folder; return its output."""
    # An outer make would pass its variables to this one.
    env = {key: value for key, value in os.environ.items() if not key.startswith("MAKE") and key != "MFLAGS"}
    return subprocess.run(
        ["make", "--silent", *arguments], cwd=folder, env=env, check=True, capture_output=True, text=True
    ).stdout
