"""What the doctor makes of facts, by whole checks; others are in test_store_checks.py and test_operator_checks.py."""

from dataclasses import replace

import pytest

from kfp_distributed.cli.cluster_checks.checks import (
    Check,
    Login,
    Permission,
    Question,
    Refusal,
    as_line,
    judge_image,
    judge_login,
    judge_namespace,
    judge_permissions,
)
from kfp_distributed.cli.setup.libraries import StepLibrary

QUESTION = Question("team", "python:3.11")
DEPLOYING = (StepLibrary("deploy-model", "kfp-distributed-1-0", "0"),)


class TestNamespace:
    def test_existing_and_unreadable_namespaces_yield_no_check(self):
        assert judge_namespace(QUESTION, {"kind": "Namespace"}, None) == []
        assert judge_namespace(QUESTION, Refusal("forbidden"), None) == []

    def test_a_missing_namespace_or_account_fails(self):
        assert judge_namespace(Question("team", "", account="runner"), None, None) == [
            Check("namespace", "failed", "there is no team", "kubectl create namespace team"),
            Check(
                "service account",
                "failed",
                "there is no team/runner",
                "kubectl create serviceaccount runner --namespace team",
            ),
        ]


class TestPermissions:
    REFUSED = (
        Permission("create", "kubeflow.org", "tfjobs"),
        Permission("get", "kubeflow.org", "tfjobs"),
        Permission("get", "", "pods/log"),
        Permission("get", "", "secrets", "mlpipeline-minio-artifact"),
    )
    FOUND = "may not, in team: create, get tfjobs.kubeflow.org; get pods/log; get secrets mlpipeline-minio-artifact"
    INSTALL = "kfp-distributed install --namespace team"
    BIND = "kubectl create rolebinding kfp-distributed-train-{} --namespace team --role kfp-distributed-train"

    def test_all_permissions_are_granted(self):
        question = Question("team", "", account="pipeline-runner")
        result = "pipeline-runner has all permissions that a train step needs in team"
        assert judge_permissions(question, "admin", ()) == Check("permissions", "ok", result)

    def test_a_user_gets_a_hint_to_check_the_account_of_the_steps(self):
        assert judge_permissions(QUESTION, "ann", ()) == Check(
            "permissions",
            "ok",
            "ann has all permissions that a train step needs in team",
            "to check the account of the steps: --service-account pipeline-runner",
        )

    @pytest.mark.parametrize(
        ("account", "user", "who", "fix"),
        [
            ("pipeline-runner", "admin", "pipeline-runner", INSTALL),
            ("default-editor", "admin", "default-editor", f"{INSTALL} --service-account default-editor"),
            ("", "ann lee", "ann lee", f"{INSTALL} && {BIND.format('user')} --user 'ann lee'"),
            ("", "", "this user", f"{INSTALL} && {BIND.format('user')} --user NAME"),
            ("", "system:serviceaccount:team:pipeline-runner", "system:serviceaccount:team:pipeline-runner", INSTALL),
            (
                "",
                "system:serviceaccount:ci:pipeline-runner",
                "system:serviceaccount:ci:pipeline-runner",
                f"{INSTALL} && {BIND.format('pipeline-runner')} --serviceaccount ci:pipeline-runner",
            ),
        ],
    )
    def test_missing_permissions_fail_and_the_fix_grants_them(self, account, user, who, fix):
        result = judge_permissions(Question("team", "", account=account), user, self.REFUSED)
        assert result == Check("permissions", "failed", f"{who} {self.FOUND}", fix)

    @pytest.mark.parametrize(
        ("account", "fix"),
        [
            ("pipeline-runner", f"{INSTALL} --trainer"),
            (
                "",
                f"{INSTALL} --trainer && {BIND.format('user')} --user ann && "
                "kubectl create rolebinding kfp-distributed-trainer-user --namespace team --role "
                "kfp-distributed-trainer --user ann",
            ),
        ],
    )
    def test_the_fix_grants_the_permissions_for_train_jobs(self, account, fix):
        refused = [Permission("create", "trainer.kubeflow.org", "trainjobs")]
        assert judge_permissions(Question("team", "", account=account), "ann", refused).fix == fix

    BIND_DEPLOY = (
        "kubectl create rolebinding kfp-distributed-deploy-model-user --namespace team --role "
        "kfp-distributed-deploy-model --user ann"
    )

    @pytest.mark.parametrize(
        ("account", "who", "fix"),
        [
            ("runner", "runner", f"{INSTALL} --deploy --service-account runner"),
            ("", "ann", f"{INSTALL} --deploy && {BIND_DEPLOY}"),
        ],
    )
    def test_the_fix_grants_the_permissions_of_deploy_model(self, account, who, fix):
        group = "serving.kserve.io"
        refused = [Permission(verb, group, "inferenceservices") for verb in ("create", "update")]
        question = Question("team", "", account=account)
        result = judge_permissions(question, "ann", refused, "deploy_model")
        message = f"{who} may not, in team: create, update inferenceservices.{group}"
        assert result == Check("permissions of deploy_model", "warning", message, fix)
        result = judge_permissions(replace(question, libraries=DEPLOYING), "ann", refused, "deploy_model")
        assert result == Check("permissions of deploy_model", "failed", message, fix)

    def test_the_fix_grants_access_to_a_secret_of_another_name(self):
        question = Question("team", "", account="pipeline-runner")
        result = judge_permissions(question, "", [Permission("get", "", "secrets", "keys")])
        rule = '{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["keys"], "verbs": ["get"]}'
        patch = f"""--type json --patch '[{{"op": "add", "path": "/rules/-", "value": {rule}}}]'"""
        role = "kubectl patch role kfp-distributed-train --namespace team"
        assert result.fix == f"{self.INSTALL} && {role} {patch}"

    def test_permissions_that_cannot_be_checked_are_a_warning(self):
        question = Question("team", "", account="pipeline-runner")
        assert judge_permissions(question, "ann", Refusal("ann may not create")) == Check(
            "permissions",
            "warning",
            "cannot check the permissions of pipeline-runner: ann may not create",
            "run this without --service-account inside a step, or ask an administrator to run it",
        )


class TestLogin:
    NOBODY = 'forbidden: User "system:anonymous" cannot get path "/apis/batch/v1"'
    CHOOSE = "kubectl config get-users, and name one of them: kubectl config set-context 'my lab' --user NAME"

    @pytest.mark.parametrize(
        ("login", "error", "message", "fix"),
        [
            (Login("my lab"), NOBODY, "context my lab names no user", CHOOSE),
            (
                Login("my lab", "bob", ["ann lee"]),
                NOBODY,
                "context my lab names user bob, which is not in the configuration",
                CHOOSE,
            ),
            *(
                (
                    Login("my lab", "ann lee", ["ann lee"]),
                    error,
                    "the API server rejects the credentials of user ann lee of context my lab",
                    "log in again, or set a valid token: kubectl config set-credentials 'ann lee' --token TOKEN",
                )
                for error in (NOBODY, "Unauthorized")
            ),
            (
                Login("my lab", "ann lee", ["ann lee"]),
                'forbidden: User "ann" cannot get path "/version"',
                "user ann lee of context my lab may not list the APIs of the server",
                "ask an administrator to bind the ClusterRole system:discovery to this user",
            ),
            (
                Login(),
                "Unauthorized",
                "the API server rejects this pod's service account",
                "check the token of this pod's service account, and the permissions of the account",
            ),
        ],
    )
    def test_rejected_credentials_and_their_fix(self, login, error, message, fix):
        assert judge_login(login, error) == Check("user", "failed", f"{message}: {error}", fix)


class TestImage:
    PULL = "kubectl run pull --namespace team --image {} --restart Never --rm --attach --command -- true"
    UNKNOWN = "whether it can be pulled is only known after a pod has tried"

    def judge(self, image, nodes):
        return judge_image(Question("team", image), nodes)

    @pytest.mark.parametrize(
        ("image", "name"),
        [
            ("python:3.11", "docker.io/library/python:3.11"),
            ("team/trainer", "docker.io/team/trainer:latest"),
            ("localhost/trainer:1", "localhost/trainer:1"),
            ("registry.example.com:5000/trainer:1", "registry.example.com:5000/trainer:1"),
        ],
    )
    def test_an_image_on_all_nodes_is_ok(self, image, name):
        nodes = [{"status": {"images": [{"names": None}, {"names": ["other@sha256:12", name]}]}}]
        assert self.judge(image, nodes) == Check("image", "ok", f"1 of 1 nodes have {image}")

    def test_a_required_image_that_is_not_named_fails(self):
        fix = "run make images, or choose another image, and pass it as --image NAME"
        assert self.judge(Refusal("no horovod"), []) == Check("image", "failed", "no horovod", fix)

    def test_an_image_on_some_nodes_is_ok(self):
        nodes = [{"status": {"images": [{"names": ["a/b:1"]}]}}, {"status": {}}]
        assert self.judge("a/b:1", nodes) == Check(
            "image", "ok", f"1 of 2 nodes have a/b:1; for the others, {self.UNKNOWN}"
        )

    def test_an_image_on_no_node_is_a_warning(self):
        result = f"no node is known to have a/b:1; {self.UNKNOWN}"
        assert self.judge("a/b:1", [{"status": {}}]) == Check("image", "warning", result, self.PULL.format("a/b:1"))

    def test_nodes_that_cannot_be_listed_are_a_warning(self):
        result = f"cannot check whether a node has a/b:1: forbidden; {self.UNKNOWN}"
        assert self.judge("a/b:1", Refusal("forbidden")) == Check("image", "warning", result, self.PULL.format("a/b:1"))


def test_a_check_is_printed_with_its_fix():
    assert as_line(Check("cluster", "ok", "is there")) == "ok       cluster: is there"
    assert as_line(Check("image", "warning", "is not", "get it")) == "warning  image: is not\n         -> get it"
