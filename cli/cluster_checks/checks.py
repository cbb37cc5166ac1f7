"""Judge facts about a cluster: is it ready for training? Each result that is not ok names a fix. Pure."""

import json
import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kfp_distributed.cli.setup.installation import DEFAULT_ACCOUNT, DEPLOY_ROLE, ROLE, TRAINER_ROLE
from kfp_distributed.cli.setup.libraries import StepLibrary
from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests.train_job import TRAIN_JOB
from kfp_distributed.components.train.describe.specification import (
    DistributionSpecification,
    DistributionType,
    OperatorKey,
)
from kfp_distributed.storage.kubeflow.kfp_backend import STORE_SECRET

CheckLevel = Literal["ok", "warning", "failed"]

TYPES: tuple[DistributionType, ...] = ("Job", "TF", "PyTorch", "MPI")

_INSTALL_OPTIONS = {TRAINER_ROLE: "--trainer", DEPLOY_ROLE: "--deploy"}
"""Options of `install` that create the Roles which it does not create by default."""

_ACCOUNT = "system:serviceaccount:"
_ANONYMOUS = "system:anonymous"


class Check(NamedTuple):
    """Result of a check.

    Attributes:
        name: Name of the check.
        level: "failed" means that no training can run. "warning" means a possible problem, or that a fact is unknown.
        message: The result in words.
        fix: What to do, usually a command; "" if nothing is to be done.
    """

    name: str
    level: CheckLevel
    message: str
    fix: str = ""


class Permission(NamedTuple):
    """A permission in the namespace, for one object or, without a name, for all objects of the resource."""

    verb: str
    group: str
    resource: str
    name: str = ""


class Refusal(str):
    """A fact that is unknown, because the server refused to answer. The text is its message."""


class Login(NamedTuple):
    """The user of the configuration of the cluster.

    Attributes:
        context: Name of the context; "" in a pod, which uses its service account.
        user: Name of the user of the context; "" if the context names none.
        users: Names of all users of the configuration.
    """

    context: str = ""
    user: str = ""
    users: Collection[str] = ()


@dataclass(frozen=True)
class Question:
    """Options of `doctor`.

    Attributes:
        namespace: Namespace of the pipelines' pods.
        image: Image of the replicas; a Refusal if the command must name one.
        chosen: Type of job that must work. Default: None, any.
        operator: Value of the key `operator`. Default: "auto".
        account: Service account of the steps. Default: "", the user of the command.
        bucket: URI in a bucket. Default: "", the bucket of the pipelines.
        volumes: Whether the training mounts PersistentVolumeClaims. Default: no.
        claims: Whether it creates some of them. Default: no.
        endpoint: Address of the object store from this machine, as host:port and whether it uses TLS. Default: None,
            the address that pods use.
        endpoint_variable: Variable of the environment that has it. Default: "", none.
        libraries: Libraries that the steps of a compiled pipeline need. Default: none.
        buckets: Buckets that they name, as (step, parameter, URI). The URI is "" for the folder `models` beside the
            artifacts. Default: none.
        specification: distribution_specification that must work. Default: None, any.
        command: Command line that repeats these checks.
    """

    namespace: str
    image: str | Refusal
    chosen: DistributionType | None = None
    operator: OperatorKey = "auto"
    account: str = ""
    bucket: str = ""
    volumes: bool = False
    claims: bool = False
    endpoint: tuple[str, bool] | None = None
    endpoint_variable: str = ""
    libraries: tuple[StepLibrary, ...] = ()
    buckets: tuple[tuple[str, str, str], ...] = ()
    specification: DistributionSpecification | None = None
    command: str = "kfp-distributed doctor"


def judge_login(login: Login, error: str) -> Check:
    """Return why an API server refuses even discovery.

    Args:
        login: The user of the configuration.
        error: Message of the API server.
    """
    context, user = shlex.quote(login.context), shlex.quote(login.user)
    choose = f"kubectl config get-users, and name one of them: kubectl config set-context {context} --user NAME"
    if not login.context:
        fix = "check the token of this pod's service account, and the permissions of the account"
        return Check("user", "failed", f"the API server rejects this pod's service account: {error}", fix)
    if not login.user:
        return Check("user", "failed", f"context {login.context} names no user: {error}", choose)
    if login.user not in login.users:
        missing = f"context {login.context} names user {login.user}, which is not in the configuration: {error}"
        return Check("user", "failed", missing, choose)
    who = f"user {login.user} of context {login.context}"
    if _ANONYMOUS in error or "Unauthorized" in error:
        fix = f"log in again, or set a valid token: kubectl config set-credentials {user} --token TOKEN"
        return Check("user", "failed", f"the API server rejects the credentials of {who}: {error}", fix)
    fix = "ask an administrator to bind the ClusterRole system:discovery to this user"
    return Check("user", "failed", f"{who} may not list the APIs of the server: {error}", fix)


def judge_namespace(
    question: Question, namespace: Object | Refusal | None, account: Object | Refusal | None
) -> list[Check]:
    """Return a check for the namespace and one for the service account, if they do not exist."""
    name, checks = question.namespace, []
    if namespace is None:
        checks.append(Check("namespace", "failed", f"there is no {name}", f"kubectl create namespace {name}"))
    if question.account and account is None:
        fix = f"kubectl create serviceaccount {question.account} --namespace {name}"
        checks.append(Check("service account", "failed", f"there is no {name}/{question.account}", fix))
    return checks


def judge_permissions(
    question: Question,
    user: str,
    refused: Sequence[Permission] | Refusal,
    step: Literal["train", "deploy_model"] = "train",
) -> Check:
    """Return the check of the permissions of the steps.

    Args:
        question: Options of `doctor`.
        user: User of the command, as the API server names it; "" if it does not.
        refused: Permissions that are needed and missing.
        step: The step that needs them. Default: "train".
    """
    who = question.account or user or "this user"
    deploys = step == "deploy_model"
    name, needer = ("permissions of deploy_model", step) if deploys else ("permissions", "a train step")
    if isinstance(refused, Refusal):
        fix = "run this without --service-account inside a step, or ask an administrator to run it"
        return Check(name, "warning", f"cannot check the permissions of {who}: {refused}", fix)
    if not refused:
        is_step = question.account or user.startswith(_ACCOUNT)
        hint = "" if is_step else "to check the account of the steps: --service-account pipeline-runner"
        message = f"{who} has all permissions that {needer} needs in {question.namespace}"
        return Check(name, "ok", message, hint)
    message = f"{who} may not, in {question.namespace}: {_in_words(refused)}"
    # The Role only names the Secret that Kubeflow Pipelines is installed with.
    others = [permission.name for permission in refused if permission.name not in ("", STORE_SECRET)]
    trainer = any(permission.group == TRAIN_JOB.group for permission in refused)
    roles = (DEPLOY_ROLE,) if deploys else (ROLE, *((TRAINER_ROLE,) if trainer else ()))
    # A training can run without the permissions of a step that the pipeline does not have.
    level: CheckLevel = "warning" if deploys and not deploy_steps(question) else "failed"
    return Check(name, level, message, _grant(question, user, others, roles))


def deploy_steps(question: Question) -> list[str]:
    """Return the names of the steps `deploy_model` of the compiled pipeline; none without a pipeline."""
    return [entry.step for entry in question.libraries if re.fullmatch("deploy-model(-[0-9]+)?", entry.step)]


def judge_image(question: Question, nodes: Sequence[Object] | Refusal) -> Check:
    """Return the check whether nodes have the image. The API does not tell whether other nodes can pull it."""
    unknown = "whether it can be pulled is only known after a pod has tried"
    image, namespace = question.image, f"--namespace {question.namespace}"
    if isinstance(image, Refusal):
        return Check("image", "failed", image, "run make images, or choose another image, and pass it as --image NAME")
    fix = f"kubectl run pull {namespace} --image {shlex.quote(image)} --restart Never --rm --attach --command -- true"
    if isinstance(nodes, Refusal):
        return Check("image", "warning", f"cannot check whether a node has {image}: {nodes}; {unknown}", fix)
    full_name = _full_name(image)
    having = sum(full_name in _image_names(node) for node in nodes)
    if not having:
        # The status of a node has its fifty largest images.
        return Check("image", "warning", f"no node is known to have {image}; {unknown}", fix)
    others = "" if having == len(nodes) else f"; for the others, {unknown}"
    return Check("image", "ok", f"{having} of {len(nodes)} nodes have {image}{others}")


def as_line(check: Check) -> str:
    """Return a check as a line for people, and below it the fix."""
    line = f"{check.level:<8} {check.name}: {check.message}"
    return f"{line}\n         -> {check.fix}" if check.fix else line


def _in_words(permissions: Sequence[Permission]) -> str:
    """Return permissions as people write them: "get, list jobs.batch; get secrets NAME"."""
    verbs: dict[str, list[str]] = {}
    for verb, group, resource, name in permissions:
        verbs.setdefault(f"{resource}{group and f'.{group}'}{name and f' {name}'}", []).append(verb)
    return "; ".join(f"{', '.join(names)} {resource}" for resource, names in verbs.items())


def install_command(namespace: str, account: str = "", roles: Sequence[str] = ()) -> str:
    """Return the command that installs the library and the Role in a namespace.

    Args:
        namespace: The namespace.
        account: The ServiceAccount of the steps; "" for the default.
        roles: Names of the Roles that are needed. Default: none but the one of the steps.
    """
    options = [option for role, option in _INSTALL_OPTIONS.items() if role in roles]
    words = ["kfp-distributed", "install", "--namespace", namespace, *options]
    return shlex.join(words + (["--service-account", account] if account not in ("", DEFAULT_ACCOUNT) else []))


def _grant(question: Question, user: str, secrets: Sequence[str], roles: Sequence[str]) -> str:
    """Return the commands that create Roles and bind them to the user.

    Args:
        question: Options of `doctor`.
        user: User of the command, as the API server names it.
        secrets: Secrets to read that are not in the Role.
        roles: Names of the Roles that have the missing permissions.
    """
    account, home = question.account, question.namespace
    if user.startswith(_ACCOUNT) and not account:
        home, _, account = user.removeprefix(_ACCOUNT).partition(":")
    bound = bool(account) and home == question.namespace
    commands = [install_command(question.namespace, account if bound else "", roles)]
    # install only binds service accounts of the namespace.
    who = f"--serviceaccount {home}:{account}" if account else f"--user {shlex.quote(user or 'NAME')}"
    for role in () if bound else roles:
        command = f"kubectl create rolebinding {role}-{account or 'user'}"
        commands.append(f"{command} --namespace {question.namespace} --role {role} {who}")
    if secrets:
        rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": secrets, "verbs": ["get"]}
        patch = shlex.quote(json.dumps([{"op": "add", "path": "/rules/-", "value": rule}]))
        options = f"--namespace {question.namespace} --type json"
        commands.append(f"kubectl patch role {ROLE} {options} --patch {patch}")
    return " && ".join(commands)


def _image_names(node: Object) -> set[str]:
    # An image of a node may have lost its names.
    images = node.get("status", {}).get("images") or ()
    return {_full_name(name) for image in images for name in image.get("names") or ()}


def _full_name(image: str) -> str:
    """Return the name of an image with its registry and tag, where they are left out."""
    first, slash, _ = image.partition("/")
    if not slash:
        image = f"docker.io/library/{image}"
    elif not ("." in first or ":" in first or first == "localhost"):
        image = f"docker.io/{image}"
    return image if ":" in image.rpartition("/")[2] else f"{image}:latest"
