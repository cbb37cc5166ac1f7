"""Judge facts about a cluster: is it ready for training? Each result that is not ok names a fix. Pure."""

import json
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kfp_distributed.cli.installation import DEFAULT_ACCOUNT
from kfp_distributed.cli.libraries import StepLibrary
from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests import JobKind, job_kind
from kfp_distributed.components.train.describe.manifests.cluster_settings import MpiVersion
from kfp_distributed.components.train.describe.specification import DistributionType
from kfp_distributed.storage.kfp_backend import STORE_SECRET

CheckLevel = Literal["ok", "warning", "failed"]

TYPES: tuple[DistributionType, ...] = ("Job", "TF", "PyTorch", "MPI")

_INSTALLS = {
    "training-operator": "kubectl apply --server-side --kustomize "
    "'github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.2'",
    "mpi-operator": "kubectl apply --server-side --filename "
    "https://raw.githubusercontent.com/kubeflow/mpi-operator/v0.6.0/deploy/v2beta1/mpi-operator.yaml",
}


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
        account: Service account of the steps. Default: "", the user of the command.
        bucket: URI in a bucket. Default: "", the bucket of the pipelines.
        volumes: Whether the training mounts PersistentVolumeClaims. Default: no.
        claims: Whether it creates some of them. Default: no.
        endpoint: Address of the object store from this machine, as host:port and whether it uses TLS. Default: None,
            the address that pods use.
        libraries: Libraries that the steps of a compiled pipeline need. Default: none.
        command: Command line that repeats these checks.
    """

    namespace: str
    image: str | Refusal
    chosen: DistributionType | None = None
    account: str = ""
    bucket: str = ""
    volumes: bool = False
    claims: bool = False
    endpoint: tuple[str, bool] | None = None
    libraries: tuple[StepLibrary, ...] = ()
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


def kinds_of(served: Mapping[str, Collection[str]]) -> dict[DistributionType, JobKind]:
    """Return the kind of each type of job that an API server serves.

    Args:
        served: The plurals of each "group/version".
    """
    versions: tuple[MpiVersion, MpiVersion] = ("v2beta1", "v1")
    mpi = next((version for version in versions if "mpijobs" in served[f"kubeflow.org/{version}"]), None)
    kinds: dict[DistributionType, JobKind] = {name: job_kind(name, mpi) for name in TYPES if name != "MPI" or mpi}
    return {name: kind for name, kind in kinds.items() if kind.plural in served[f"{kind.group}/{kind.version}"]}


def judge_kinds(question: Question, kinds: Mapping[DistributionType, JobKind]) -> Iterator[Check]:
    """Yield a check for each kind of job: whether the API server serves it."""
    for job_type in [question.chosen] if question.chosen else TYPES:
        if kind := kinds.get(job_type):
            yield Check(kind.kind, "ok", f"served as {kind.group}/{kind.version}")
        else:
            level: CheckLevel = "failed" if question.chosen else "warning"
            # A training operator without MPIJob was installed for use with the MPI operator.
            operator = "mpi-operator" if job_type == "MPI" and "TF" in kinds else "training-operator"
            missing = f"not served, so distribution_type {job_type} cannot be used"
            yield Check(f"{job_type.removesuffix('Job')}Job", level, missing, _INSTALLS[operator])


def judge_operators(
    question: Question, kinds: Mapping[DistributionType, JobKind], deployments: Sequence[Object] | Refusal
) -> list[Check]:
    """Return a check for each operator that these kinds need: whether it runs and watches the namespace."""
    needed: dict[str, list[str]] = {}
    for kind in kinds.values():
        if kind.group != "batch":
            operator = "mpi-operator" if kind.version == "v2beta1" else "training-operator"
            needed.setdefault(operator, []).append(kind.kind)
    return [_judge_operator(operator, names, question.namespace, deployments) for operator, names in needed.items()]


def _judge_operator(
    operator: str, kinds: Sequence[str], namespace: str, deployments: Sequence[Object] | Refusal
) -> Check:
    jobs = ", ".join(kinds)
    if isinstance(deployments, Refusal):
        fix = "ask somebody who may list Deployments: kubectl get deployments --all-namespaces"
        return Check(operator, "warning", f"cannot check whether it runs, for {jobs}: {deployments}", fix)
    operators = [
        (deployment, watched)
        for deployment in deployments
        if (watched := _watched(deployment, operator, kinds, namespace))
    ]
    if not operators:
        missing = f"no Deployment of it watches {namespace}, so the pods of {jobs} would not be created"
        return Check(operator, "failed", missing, _INSTALLS[operator])
    # One that is ready counts before others.
    deployment, watched = max(operators, key=lambda entry: bool(_ready_replicas(entry[0])))
    name = "deployment/{name} --namespace {namespace}".format(**deployment["metadata"])
    if not _ready_replicas(deployment):
        is_scaled_down = deployment["spec"].get("replicas") == 0
        fix = f"kubectl scale {name} --replicas 1" if is_scaled_down else f"kubectl describe {name}, and check its pods"
        return Check(operator, "failed", f"{name} is not ready, so {jobs} would wait", fix)
    if unwatched := ", ".join(kind for kind in kinds if kind not in watched):
        fix = f"kubectl edit {name}, and add the arguments --enable-scheme for {unwatched}"
        return Check(operator, "failed", f"{name} does not watch {unwatched}", fix)
    return Check(operator, "ok", f"{name} is ready and watches {jobs}")


def _ready_replicas(deployment: Object) -> int:
    return int(deployment.get("status", {}).get("readyReplicas") or 0)


def judge_permissions(question: Question, user: str, refused: Sequence[Permission] | Refusal) -> Check:
    """Return the check of the permissions of the steps.

    Args:
        question: Options of `doctor`.
        user: User of the command, as the API server names it; "" if it does not.
        refused: Permissions that are needed and missing.
    """
    who = question.account or user or "this user"
    if isinstance(refused, Refusal):
        fix = "run this without --service-account inside a step, or ask an administrator to run it"
        return Check("permissions", "warning", f"cannot check the permissions of {who}: {refused}", fix)
    if not refused:
        is_step = question.account or user.startswith(_ACCOUNT)
        hint = "" if is_step else "to check the account of the steps: --service-account pipeline-runner"
        message = f"{who} has all permissions that a train step needs in {question.namespace}"
        return Check("permissions", "ok", message, hint)
    message = f"{who} may not, in {question.namespace}: {_in_words(refused)}"
    # The Role only names the Secret that Kubeflow Pipelines is installed with.
    others = [permission.name for permission in refused if permission.name not in ("", STORE_SECRET)]
    return Check("permissions", "failed", message, _grant(question, user, others))


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


def _watched(deployment: Object, operator: str, names: Sequence[str], namespace: str) -> list[str]:
    """Return the kinds that a Deployment watches in a namespace; none if it is not that of the operator."""
    containers = deployment["spec"]["template"]["spec"]["containers"]
    own_names = [deployment["metadata"]["name"]]
    own_names += [container[key] for container in containers for key in ("name", "image")]
    if not any(operator in name for name in own_names):
        return []
    arguments = [word for container in containers for key in ("command", "args") for word in container.get(key) or ()]
    options = [word.lstrip("-").partition("=") for word in arguments]
    if namespace not in ([value for key, _, value in options if key == "namespace" and value] or [namespace]):
        return []
    schemes = [value.lower() for key, _, value in options if key == "enable-scheme"]
    return [name for name in names if not schemes or name.lower() in schemes]


def _in_words(permissions: Sequence[Permission]) -> str:
    """Return permissions as people write them: "get, list jobs.batch; get secrets NAME"."""
    verbs: dict[str, list[str]] = {}
    for verb, group, resource, name in permissions:
        verbs.setdefault(f"{resource}{group and f'.{group}'}{name and f' {name}'}", []).append(verb)
    return "; ".join(f"{', '.join(names)} {resource}" for resource, names in verbs.items())


def install_command(namespace: str, account: str = "") -> str:
    """Return the command that installs the library and the Role in a namespace.

    Args:
        namespace: The namespace.
        account: The ServiceAccount of the steps; "" for the default.
    """
    words = ["kfp-distributed", "install", "--namespace", namespace]
    return shlex.join(words + (["--service-account", account] if account not in ("", DEFAULT_ACCOUNT) else []))


def _grant(question: Question, user: str, secrets: Sequence[str]) -> str:
    """Return the commands that create the Role and bind it to the user.

    Args:
        question: Options of `doctor`.
        user: User of the command, as the API server names it.
        secrets: Secrets to read that are not in the Role.
    """
    account, role = question.account, f"--namespace {question.namespace} --role kfp-distributed-train"
    home = question.namespace
    if user.startswith(_ACCOUNT) and not account:
        home, _, account = user.removeprefix(_ACCOUNT).partition(":")
    bound = bool(account) and home == question.namespace
    commands = [install_command(question.namespace, account if bound else "")]
    if not bound:
        # install only binds service accounts of the namespace.
        who = f"--serviceaccount {home}:{account}" if account else f"--user {shlex.quote(user or 'NAME')}"
        commands.append(f"kubectl create rolebinding kfp-distributed-train-{account or 'user'} {role} {who}")
    if secrets:
        rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": secrets, "verbs": ["get"]}
        patch = shlex.quote(json.dumps([{"op": "add", "path": "/rules/-", "value": rule}]))
        options = f"--namespace {question.namespace} --type json"
        commands.append(f"kubectl patch role kfp-distributed-train {options} --patch {patch}")
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
