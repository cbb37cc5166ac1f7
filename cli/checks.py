"""What the facts about a cluster mean for training on it: one line a check, and what mends it. Pure."""

import json
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kfp_distributed.cli.installation import DEFAULT_ACCOUNT
from kfp_distributed.cli.libraries import StepLibrary
from kfp_distributed.components.train.manifests import JobKind, job_kind
from kfp_distributed.components.train.manifests.cluster_settings import MpiVersion, Object
from kfp_distributed.components.train.specification import DistributionType
from kfp_distributed.storage.kfp_store import KFP_SECRET

Level = Literal["ok", "warning", "failed"]

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
    """One thing that was looked at.

    Attributes:
        name: What it is.
        level: "failed" is what no training can do without; "warning" is what may be wrong, or could not be seen.
        found: How it is.
        mend: What to do about it, mostly a command; "" where nothing is to be done.
    """

    name: str
    level: Level
    found: str
    mend: str = ""


class Permission(NamedTuple):
    """What somebody may do in the namespace; without a name, with all objects of the resource."""

    verb: str
    group: str
    resource: str
    name: str = ""


class Refusal(str):
    """Stands for a fact that could not be had: what the server said instead."""


class Login(NamedTuple):
    """Who we are, as the configuration of the cluster says.

    Attributes:
        context: The context; "" in a pod, which has its service account.
        user: The user that the context names; "" where it names none.
        users: Those that the configuration has.
    """

    context: str = ""
    user: str = ""
    users: Collection[str] = ()


@dataclass(frozen=True)
class Question:
    """What is to be looked at.

    Attributes:
        namespace: Where the pipelines' pods run.
        chosen: The type of job that must work; None where any may be used.
        image: Image of the replicas; a Refusal where one has to be named, and is not.
        account: The service account of the steps; "" for whoever asks.
        bucket: Address of a bucket; "" for that of the pipelines.
        volumes: Whether the training mounts PersistentVolumeClaims.
        claims: Whether it makes some of them.
        endpoint: Where the object store is from here, as host:port and whether with TLS; None for where pods find it.
        libraries: The libraries that the steps of a compiled pipeline need.
        command: The command line that asks this.
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
    """Why an API server will not tell us even what it serves.

    Args:
        login: Who we say we are.
        error: What it says.
    """
    context, user = shlex.quote(login.context), shlex.quote(login.user)
    choose = f"kubectl config get-users, and name one of them: kubectl config set-context {context} --user NAME"
    if not login.context:
        mend = "look at the token of this pod's service account, and at what its account may do"
        return Check("user", "failed", f"the API server does not take this pod's account: {error}", mend)
    if not login.user:
        return Check("user", "failed", f"context {login.context} names no user: {error}", choose)
    if login.user not in login.users:
        missing = f"context {login.context} names user {login.user}, which the configuration does not have: {error}"
        return Check("user", "failed", missing, choose)
    who = f"user {login.user} of context {login.context}"
    if _ANONYMOUS in error or "Unauthorized" in error:
        mend = f"log in anew, or name a token that is valid: kubectl config set-credentials {user} --token TOKEN"
        return Check("user", "failed", f"the API server does not take the credentials of {who}: {error}", mend)
    mend = "ask an administrator to bind the ClusterRole system:discovery to this user"
    return Check("user", "failed", f"{who} may not see what the API server serves: {error}", mend)


def judge_namespace(
    question: Question, namespace: Object | Refusal | None, account: Object | Refusal | None
) -> list[Check]:
    """Whether there are the namespace and the service account, where one is named."""
    name, who, found = question.namespace, question.account, []
    if namespace is None:
        found.append(Check("namespace", "failed", f"there is no {name}", f"kubectl create namespace {name}"))
    if who and account is None:
        mend = f"kubectl create serviceaccount {who} --namespace {name}"
        found.append(Check("service account", "failed", f"there is no {name}/{who}", mend))
    return found


def kinds_of(served: Mapping[str, Collection[str]]) -> dict[DistributionType, JobKind]:
    """The kind of each type of job that an API server has.

    Args:
        served: The plurals in each "group/version".
    """
    versions: tuple[MpiVersion, MpiVersion] = ("v2beta1", "v1")
    mpi = next((each for each in versions if "mpijobs" in served[f"kubeflow.org/{each}"]), None)
    kinds: dict[DistributionType, JobKind] = {each: job_kind(each, mpi) for each in TYPES if each != "MPI" or mpi}
    return {name: kind for name, kind in kinds.items() if kind.plural in served[f"{kind.group}/{kind.version}"]}


def judge_kinds(question: Question, kinds: Mapping[DistributionType, JobKind]) -> Iterator[Check]:
    """Whether the API server has the kinds of job."""
    for each in [question.chosen] if question.chosen else TYPES:
        if kind := kinds.get(each):
            yield Check(kind.kind, "ok", f"served as {kind.group}/{kind.version}")
        else:
            level: Level = "failed" if question.chosen else "warning"
            # A training operator without MPIJob leaves it to the other one.
            operator = "mpi-operator" if each == "MPI" and "TF" in kinds else "training-operator"
            missing = f"not served, so distribution_type {each} cannot be used"
            yield Check(f"{each.removesuffix('Job')}Job", level, missing, _INSTALLS[operator])


def judge_operators(
    question: Question, kinds: Mapping[DistributionType, JobKind], deployments: Sequence[Object] | Refusal
) -> list[Check]:
    """Whether somebody makes pods of the jobs."""
    wanted: dict[str, list[str]] = {}
    for each in kinds.values():
        if each.group != "batch":
            operator = "mpi-operator" if each.version == "v2beta1" else "training-operator"
            wanted.setdefault(operator, []).append(each.kind)
    return [_judge_operator(each, names, question.namespace, deployments) for each, names in wanted.items()]


def _judge_operator(
    operator: str, kinds: Sequence[str], namespace: str, deployments: Sequence[Object] | Refusal
) -> Check:
    jobs = ", ".join(kinds)
    if isinstance(deployments, Refusal):
        mend = "ask who may list Deployments: kubectl get deployments --all-namespaces"
        return Check(operator, "warning", f"cannot see whether it runs, for {jobs}: {deployments}", mend)
    found = [(each, watched) for each in deployments if (watched := _watched(each, operator, kinds, namespace))]
    if not found:
        missing = f"no Deployment of it watches {namespace}: nobody would start the pods of {jobs}"
        return Check(operator, "failed", missing, _INSTALLS[operator])
    first, watched = next((each for each in found if each[0].get("status", {}).get("readyReplicas")), found[0])
    place = "deployment/{name} --namespace {namespace}".format(**first["metadata"])
    if not first.get("status", {}).get("readyReplicas"):
        asleep = first["spec"].get("replicas") == 0
        mend = f"kubectl scale {place} --replicas 1" if asleep else f"kubectl describe {place}, and look at its pods"
        return Check(operator, "failed", f"{place} is not ready: {jobs} would wait", mend)
    if unwatched := ", ".join(each for each in kinds if each not in watched):
        mend = f"kubectl edit {place}, and give its arguments --enable-scheme for {unwatched}"
        return Check(operator, "failed", f"{place} does not watch {unwatched}", mend)
    return Check(operator, "ok", f"{place} is ready and watches {jobs}")


def judge_permissions(question: Question, user: str, refused: Sequence[Permission] | Refusal) -> Check:
    """Whether the steps may do what they must.

    Args:
        question: What is asked.
        user: Who asks, as the API server knows him; "" where it does not say.
        refused: What is needed and not allowed.
    """
    who = question.account or user or "this user"
    if isinstance(refused, Refusal):
        mend = "ask without --service-account from within a step, or let an administrator ask"
        return Check("permissions", "warning", f"cannot see what {who} may do: {refused}", mend)
    if not refused:
        is_step = question.account or user.startswith(_ACCOUNT)
        hint = "" if is_step else "what the steps may do: --service-account pipeline-runner"
        return Check("permissions", "ok", f"{who} may do all that a train step does in {question.namespace}", hint)
    found = f"{who} may not, in {question.namespace}: {_in_words(refused)}"
    # The Role names but the Secret that Kubeflow Pipelines is installed with.
    others = [each.name for each in refused if each.name not in ("", KFP_SECRET)]
    return Check("permissions", "failed", found, _grant(question, user, others))


def judge_image(question: Question, nodes: Sequence[Object] | Refusal) -> Check:
    """Whether nodes have an image; whether others can pull it, no question to the API can tell."""
    unknown = "only a pod that pulls it can tell whether it can be pulled"
    image, place = question.image, f"--namespace {question.namespace}"
    if isinstance(image, Refusal):
        return Check("image", "failed", image, "make images, or choose another that has it; then ask with --image NAME")
    mend = f"kubectl run pull {place} --image {shlex.quote(image)} --restart Never --rm --attach --command -- true"
    if isinstance(nodes, Refusal):
        return Check("image", "warning", f"cannot see whether a node has {image}: {nodes}; {unknown}", mend)
    wanted = _whole_name(image)
    having = sum(wanted in _image_names(node) for node in nodes)
    if not having:
        # A node tells of its fifty largest images.
        return Check("image", "warning", f"no node is known to have {image}; {unknown}", mend)
    others = "" if having == len(nodes) else f"; for the others, {unknown}"
    return Check("image", "ok", f"{having} of {len(nodes)} nodes have {image}{others}")


def as_line(check: Check) -> str:
    """A check as people read it: a line, and below it what mends it."""
    line = f"{check.level:<8} {check.name}: {check.found}"
    return f"{line}\n         -> {check.mend}" if check.mend else line


def _watched(deployment: Object, operator: str, names: Sequence[str], namespace: str) -> list[str]:
    """Which of an operator's kinds a Deployment watches in a namespace; none if it is not that operator's."""
    containers = deployment["spec"]["template"]["spec"]["containers"]
    called = [deployment["metadata"]["name"], *(each[key] for each in containers for key in ("name", "image"))]
    if not any(operator in each for each in called):
        return []
    arguments = [word for each in containers for key in ("command", "args") for word in each.get(key) or ()]
    options = [word.lstrip("-").partition("=") for word in arguments]
    if namespace not in ([value for key, _, value in options if key == "namespace" and value] or [namespace]):
        return []
    schemes = [value.lower() for key, _, value in options if key == "enable-scheme"]
    return [name for name in names if not schemes or name.lower() in schemes]


def _in_words(permissions: Sequence[Permission]) -> str:
    """As people write them, a resource once: "get, list jobs.batch; get secrets NAME"."""
    verbs: dict[str, list[str]] = {}
    for verb, group, resource, name in permissions:
        verbs.setdefault(f"{resource}{group and f'.{group}'}{name and f' {name}'}", []).append(verb)
    return "; ".join(f"{', '.join(each)} {what}" for what, each in verbs.items())


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
        question: What is asked.
        user: Who asks, as the API server knows him.
        secrets: Secrets to read that are not in the Role.
    """
    account, role = question.account, f"--namespace {question.namespace} --role kfp-distributed-train"
    home = question.namespace
    if user.startswith(_ACCOUNT) and not account:
        home, _, account = user.removeprefix(_ACCOUNT).partition(":")
    bound = bool(account) and home == question.namespace
    commands = [install_command(question.namespace, account if bound else "")]
    if not bound:
        # install binds service accounts of the namespace alone.
        who = f"--serviceaccount {home}:{account}" if account else f"--user {shlex.quote(user or 'NAME')}"
        commands.append(f"kubectl create rolebinding kfp-distributed-train-{account or 'user'} {role} {who}")
    if secrets:
        rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": secrets, "verbs": ["get"]}
        patch = shlex.quote(json.dumps([{"op": "add", "path": "/rules/-", "value": rule}]))
        place = f"--namespace {question.namespace} --type json"
        commands.append(f"kubectl patch role kfp-distributed-train {place} --patch {patch}")
    return " && ".join(commands)


def _image_names(node: Object) -> set[str]:
    # A node's images may have no name any more.
    images = node.get("status", {}).get("images") or ()
    return {_whole_name(name) for each in images for name in each.get("names") or ()}


def _whole_name(image: str) -> str:
    """An image's name with what is understood where it is left out."""
    first, slash, _ = image.partition("/")
    if not slash:
        image = f"docker.io/library/{image}"
    elif not ("." in first or ":" in first or first == "localhost"):
        image = f"docker.io/{image}"
    return image if ":" in image.rpartition("/")[2] else f"{image}:latest"
