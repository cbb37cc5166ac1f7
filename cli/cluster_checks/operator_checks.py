"""Judge what a cluster serves and which operators run there, and name the operator of each type of job. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from kfp_distributed.cli.cluster_checks.checks import (
    TYPES,
    Check,
    CheckLevel,
    Permission,
    Question,
    Refusal,
    deploy_steps,
    install_command,
)
from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.deploy_model.inference_service import GROUP, KIND, VERSION
from kfp_distributed.components.train.describe.manifests import JobKind, job_kind
from kfp_distributed.components.train.describe.manifests.cluster_settings import MpiVersion
from kfp_distributed.components.train.describe.manifests.operator_limits import check_mpi_limits, check_trainer_limits
from kfp_distributed.components.train.describe.manifests.train_job import TRAIN_JOB
from kfp_distributed.components.train.describe.specification import DistributionType
from kfp_distributed.components.train.run.runners.kubernetes.create.choose_operator import (
    Offer,
    choose,
    own_permissions,
)

_INSTALLS = {
    "training-operator": "kubectl apply --server-side --kustomize "
    "'github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.2'",
    "mpi-operator": "kubectl apply --server-side --filename "
    "https://raw.githubusercontent.com/kubeflow/mpi-operator/v0.6.0/deploy/v2beta1/mpi-operator.yaml",
    "kubeflow-trainer": "kubectl apply --server-side --kustomize "
    "'https://github.com/kubeflow/trainer.git/manifests/overlays/manager?ref=v2.3.0'",
    "jobset": "kubectl apply --server-side --filename "
    "https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml",
}
"""Commands that install the operators. That of Kubeflow Trainer also installs JobSet."""

_MARKS = {
    "training-operator": ("training-operator",),
    "mpi-operator": ("mpi-operator",),
    "kubeflow-trainer": ("trainer-controller-manager",),
    "jobset": ("jobset-controller", "jobset/jobset"),
}
"""Parts of the names or images of the Deployments by which the operators are known."""


Kinds = Mapping[DistributionType, JobKind]
"""The kind of each type of job that can be used."""


def kinds_of(served: Mapping[str, Collection[str]]) -> dict[DistributionType, JobKind]:
    """Return the kind of each type of job that an API server serves.

    Args:
        served: The plurals of each "group/version".
    """
    versions: tuple[MpiVersion, MpiVersion] = ("v2beta1", "v1")
    mpi = next((version for version in versions if "mpijobs" in served[f"kubeflow.org/{version}"]), None)
    kinds: dict[DistributionType, JobKind] = {name: job_kind(name, mpi) for name in TYPES if name != "MPI" or mpi}
    return {name: kind for name, kind in kinds.items() if kind.plural in served[f"{kind.group}/{kind.version}"]}


def judge_kinds(question: Question, kinds: Kinds, trainer: Offer) -> Iterator[Check]:
    """Yield a check for each kind of job: whether the API server serves it.

    Args:
        question: Options of `doctor`.
        kinds: The served kinds of `kinds_of`.
        trainer: What the cluster offers of Kubeflow Trainer.
    """
    for job_type in _types(question):
        kind = kinds.get(job_type)
        if job_type != "Job" and question.operator == "trainer":
            continue
        if kind:
            yield Check(kind.kind, "ok", f"served as {kind.group}/{kind.version}")
        elif job_type == "Job" or not trainer.is_usable or question.operator != "auto":
            level: CheckLevel = "failed" if question.chosen else "warning"
            # A training operator without MPIJob was installed for use with the MPI operator.
            operator = "mpi-operator" if job_type == "MPI" and "TF" in kinds else "training-operator"
            missing = f"not served, so distribution_type {job_type} cannot be used"
            yield Check(f"{job_type.removesuffix('Job')}Job", level, missing, _INSTALLS[operator])
    if question.chosen != "Job" and question.operator != "training-operator":
        yield from _judge_trainer(question, trainer)


def _judge_trainer(question: Question, trainer: Offer) -> Iterator[Check]:
    level: CheckLevel = "failed" if question.operator == "trainer" else "warning"
    served = f"served as {TRAIN_JOB.group}/{TRAIN_JOB.version}"
    if trainer.is_outdated:
        message = f"{served} by a Kubeflow Trainer before 2.2, which has no spec.runtimePatches, so it cannot be used"
        yield Check(TRAIN_JOB.kind, level, message, _INSTALLS["kubeflow-trainer"])
    elif trainer.is_served:
        yield Check(TRAIN_JOB.kind, "ok", served)
    elif level == "failed":
        message = "not served, so operator trainer cannot be used"
        yield Check(TRAIN_JOB.kind, level, message, _INSTALLS["kubeflow-trainer"])


def choose_kinds(
    question: Question, kinds: Kinds, trainer: Offer, refused: Sequence[Permission] | Refusal
) -> tuple[dict[DistributionType, JobKind], list[Check]]:
    """Return the kind that each type of job gets, and for each but Job a check that says why.

    Args:
        question: Options of `doctor`.
        kinds: The served kinds of `kinds_of`.
        trainer: What the cluster offers of Kubeflow Trainer.
        refused: Permissions for these kinds that the account lacks. A Refusal counts as none.
    """
    used: dict[DistributionType, JobKind] = {}
    checks: list[Check] = []
    for job_type in _types(question):
        kind = kinds.get(job_type)
        if job_type == "Job" or question.operator == "training-operator":
            used |= {job_type: kind} if kind else {}
        elif question.operator == "trainer":
            used |= {job_type: TRAIN_JOB} if trainer.is_usable else {}
        elif kind or trainer.is_usable:
            older = Offer(kind or job_kind(job_type), kind is not None)
            used[job_type], check = _choose_kind(question, job_type, (older, trainer), refused)
            checks.append(check)
    return used, checks


def _choose_kind(
    question: Question,
    job_type: DistributionType,
    offers: tuple[Offer, Offer],
    refused: Sequence[Permission] | Refusal,
) -> tuple[JobKind, Check]:
    """Return the kind that `auto` takes of two, one of which is served, and the check that says why."""
    older, trainer = offers
    if older.is_usable and trainer.is_usable and not isinstance(refused, Refusal):
        older, trainer = (_without(offer, refused) for offer in offers)
    name = f"operator of {job_type}"
    try:
        choice = choose(job_type, older, trainer, question.namespace)
        check = Check(name, "ok", f"auto takes {choice.operator}: {choice.reason}")
    except ValueError:
        choice = choose(job_type, *offers, question.namespace)
        message = (
            f"the account may use neither {older.kind.kind} nor TrainJob; with permissions, auto takes "
            f"{choice.operator}: {choice.reason}"
        )
        check = Check(name, "warning", message, install_command(question.namespace, question.account))
    return (TRAIN_JOB if choice.operator == "trainer" else older.kind), check


def _without(offer: Offer, refused: Sequence[Permission]) -> Offer:
    """Return an offer with the permissions that are refused of those for its kind."""
    own = own_permissions(offer.kind)
    missing = [f"{verb} {resource}.{group}" for verb, group, resource, _ in refused if (verb, group, resource) in own]
    return offer._replace(missing=missing)


def judge_kserve(question: Question, versions: Sequence[str]) -> Check:
    """Return the check of KServe. Without a pipeline that deploys models, a cluster need not have it.

    Args:
        question: Options of `doctor`.
        versions: Versions in which the API server serves InferenceService.
    """
    if VERSION in versions:
        return Check(KIND, "ok", f"served as {GROUP}/{VERSION}")
    steps, install = deploy_steps(question), "install KServe 0.11 or later"
    if versions:
        level: CheckLevel = "failed" if steps else "warning"
        message = f"served as {GROUP}/{', '.join(versions)}, and deploy_model needs {VERSION}"
        return Check(KIND, level, message, install)
    if steps:
        return Check(KIND, "failed", f"not served, and {', '.join(steps)} needs KServe", install)
    return Check(KIND, "ok", "not served; only deploy_model needs KServe")


def judge_limits(question: Question, kinds: Kinds) -> Iterator[Check]:
    """Yield a failed check if the operator of the job that must work cannot honor a key.

    Args:
        question: Options of `doctor`.
        kinds: The kinds of `choose_kinds`.
    """
    spec = question.specification
    kind = kinds.get(spec.distribution_type) if spec else None
    if not spec or not kind:
        return
    try:
        if kind == TRAIN_JOB:
            check_trainer_limits(spec)
        elif kind.kind == "MPIJob":
            check_mpi_limits(spec, "v2beta1" if kind.version == "v2beta1" else "v1")
    except ValueError as error:
        yield Check("distribution_specification", "failed", str(error))


def _types(question: Question) -> Sequence[DistributionType]:
    return [question.chosen] if question.chosen else TYPES


def judge_operators(
    question: Question, kinds: Kinds, deployments: Sequence[Object] | Refusal, *, has_trainer: bool = False
) -> list[Check]:
    """Return a check for each operator that these kinds need: whether it runs and watches the namespace.

    Args:
        question: Options of `doctor`.
        kinds: The kinds of `choose_kinds`.
        deployments: The Deployments of the cluster.
        has_trainer: Whether `operator` "trainer" is an alternative to the training operator. Default: False. One
            that was removed may have left its kinds, which `auto` prefers.
    """
    needed: dict[str, list[str]] = {}
    for kind in dict.fromkeys(kinds.values()):
        if kind == TRAIN_JOB:
            needed |= {"kubeflow-trainer": [kind.kind], "jobset": ["JobSet"]}
        elif kind.group != "batch":
            operator = "mpi-operator" if kind.version == "v2beta1" else "training-operator"
            needed.setdefault(operator, []).append(kind.kind)
    checks = [_judge_operator(operator, names, question.namespace, deployments) for operator, names in needed.items()]
    other = 'or set operator to "trainer" in the distribution_specification'
    return [
        check._replace(fix=f"{check.fix}, {other}")
        if has_trainer and check.level == "failed" and check.name in ("training-operator", "mpi-operator")
        else check
        for check in checks
    ]


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


def _watched(deployment: Object, operator: str, names: Sequence[str], namespace: str) -> list[str]:
    """Return the kinds that a Deployment watches in a namespace; none if it is not that of the operator."""
    containers = deployment["spec"]["template"]["spec"]["containers"]
    own_names = [deployment["metadata"]["name"]]
    own_names += [container[key] for container in containers for key in ("name", "image")]
    if not any(mark in name for name in own_names for mark in _MARKS[operator]):
        return []
    arguments = [word for container in containers for key in ("command", "args") for word in container.get(key) or ()]
    options = [word.lstrip("-").partition("=") for word in arguments]
    if namespace not in ([value for key, _, value in options if key == "namespace" and value] or [namespace]):
        return []
    schemes = [value.lower() for key, _, value in options if key == "enable-scheme"]
    return [name for name in names if not schemes or name.lower() in schemes]
