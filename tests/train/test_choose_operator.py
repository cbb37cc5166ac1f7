"""The operator of a job, by what a cluster serves and what the account of the step may do."""

import re

import pytest
from kubernetes_api import KubernetesApi
from train.programs.jobs import make_job

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.train.describe.manifests import JobKind, job_kind
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.train_job import TRAIN_JOB
from kfp_distributed.components.train.run.runners.kubernetes.create.choose_operator import (
    Offer,
    OperatorChoice,
    choose,
    choose_operator,
)
from kfp_distributed.components.train.run.runners.kubernetes.create.preflight import needed_permissions
from kfp_distributed.components.train.run.runners.kubernetes.runner import KubernetesRunner

TF, MPI = Offer(job_kind("TF"), True), Offer(job_kind("MPI", "v2beta1"), True)
TRAINER = Offer(TRAIN_JOB, True)
OLD = TRAINER._replace(is_outdated=True)


def absent(offer):
    return offer._replace(is_served=False)


def refused(offer, *missing):
    return offer._replace(missing=missing)


@pytest.mark.parametrize(
    ("older", "trainer", "choice"),
    [
        (
            TF,
            TRAINER,
            OperatorChoice(
                "training-operator",
                None,
                "the cluster serves TFJob and TrainJob, and auto prefers TFJob",
                is_logged=True,
            ),
        ),
        (
            TF,
            absent(TRAINER),
            OperatorChoice("training-operator", None, "the cluster serves TFJob and not TrainJob"),
        ),
        (
            TF,
            OLD,
            OperatorChoice(
                "training-operator",
                None,
                "the cluster serves TFJob, and TrainJob only of a Kubeflow Trainer before 2.2",
            ),
        ),
        (
            absent(TF),
            TRAINER,
            OperatorChoice("trainer", None, "the cluster serves TrainJob and not TFJob", is_logged=True),
        ),
        (
            refused(TF, "create tfjobs.kubeflow.org", "get tfjobs.kubeflow.org"),
            TRAINER,
            OperatorChoice(
                "trainer",
                None,
                "the cluster serves TFJob and TrainJob, and the account lacks create tfjobs.kubeflow.org, "
                "get tfjobs.kubeflow.org",
                is_logged=True,
            ),
        ),
        (
            MPI,
            absent(TRAINER),
            OperatorChoice("training-operator", "v2beta1", "the cluster serves MPIJob and not TrainJob"),
        ),
        (
            MPI._replace(kind=job_kind("MPI", "v1")),
            absent(TRAINER),
            OperatorChoice("training-operator", "v1", "the cluster serves MPIJob and not TrainJob"),
        ),
        (
            absent(MPI),
            TRAINER,
            OperatorChoice("trainer", None, "the cluster serves TrainJob and not MPIJob", is_logged=True),
        ),
    ],
)
def test_auto_takes_what_is_served_and_permitted(older, trainer, choice):
    distribution_type = "MPI" if older.kind.kind == "MPIJob" else "TF"
    assert choose(distribution_type, older, trainer, "team") == choice


@pytest.mark.parametrize(
    ("older", "trainer", "faults", "advice"),
    [
        (
            absent(TF),
            absent(TRAINER),
            "distribution_type TF: TFJob is not served; TrainJob is not served",
            "install the Kubeflow training operator, or Kubeflow Trainer 2.3",
        ),
        (
            absent(MPI),
            OLD,
            "distribution_type MPI: MPIJob is not served; TrainJob is served by a Kubeflow Trainer before 2.2, which "
            "has no spec.runtimePatches",
            "install the Kubeflow training operator or the MPI operator, or Kubeflow Trainer 2.3",
        ),
        (
            refused(TF, "create tfjobs.kubeflow.org"),
            refused(TRAINER, "create trainjobs.trainer.kubeflow.org", "patch trainingruntimes.trainer.kubeflow.org"),
            "distribution_type TF: for TFJob the account lacks create tfjobs.kubeflow.org; for TrainJob the account "
            "lacks create trainjobs.trainer.kubeflow.org, patch trainingruntimes.trainer.kubeflow.org",
            "run kfp-distributed install --namespace team (and --service-account, if it is not pipeline-runner)",
        ),
        (
            absent(TF),
            refused(TRAINER, "create trainjobs.trainer.kubeflow.org"),
            "distribution_type TF: TFJob is not served; for TrainJob the account lacks create "
            "trainjobs.trainer.kubeflow.org",
            "run kfp-distributed install --namespace team --trainer (and --service-account, if it is not "
            "pipeline-runner)",
        ),
    ],
)
def test_the_error_says_what_is_missing_of_each_operator(older, trainer, faults, advice):
    distribution_type = "MPI" if older.kind.kind == "MPIJob" else "TF"
    error = (
        f"no operator of the cluster can be used for {faults}. To solve this, {advice}, or choose another "
        "distribution_type (Job needs no operator)"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(error)}$"):
        choose(distribution_type, older, trainer, "team")


@pytest.fixture
def api():
    with KubernetesApi() as server:
        yield server


TRAIN_JOBS = {"trainer.kubeflow.org/v1alpha1": ["trainjobs", "trainingruntimes"]}
CURRENT, PAST = ["runtimeRef", "runtimePatches"], ["runtimeRef", "podTemplateOverrides"]


@pytest.mark.parametrize(
    ("served", "fields", "denied", "operator", "requests"),
    [
        ({}, None, (), "training-operator", 0),
        (TRAIN_JOBS, CURRENT, (), "training-operator", 6),
        (TRAIN_JOBS, CURRENT, ("watch tfjobs",), "trainer", 16),
        (TRAIN_JOBS, PAST, ("create tfjobs",), "training-operator", 0),
        (TRAIN_JOBS, None, ("create tfjobs",), "trainer", 16),
        ({"trainer.kubeflow.org/v1alpha1": ["trainjobs"]}, CURRENT, (), "training-operator", 0),
        ({"kubeflow.org/v1": [], **TRAIN_JOBS}, CURRENT, (), "trainer", 0),
    ],
)
def test_the_cluster_is_asked_for_permissions_if_it_serves_both(api, served, fields, denied, operator, requests):
    api.served |= served
    api.train_job_fields, api.denied = fields, {*denied}
    assert choose_operator(api.connect(), "TF", "auto").operator == operator
    assert len([request for request in api.requests if request.startswith("MAY")]) == len(api.requests) == requests


@pytest.mark.parametrize(
    ("versions", "mpi_version"), [(["v1"], "v1"), (["v2beta1"], "v2beta1"), (["v1", "v2beta1"], "v2beta1")]
)
@pytest.mark.parametrize("key", ["auto", "training-operator"])
def test_the_served_version_of_an_mpijob_is_taken(api, key, versions, mpi_version):
    api.served = {f"kubeflow.org/{version}": ["mpijobs"] for version in versions}
    choice = choose_operator(api.connect(), "MPI", key)
    assert (choice.operator, choice.mpi_version) == ("training-operator", mpi_version)


def test_a_job_needs_no_request(api):
    assert choose_operator(api.connect(), "Job", "auto") == OperatorChoice("training-operator", None, "")
    assert api.requests == []


def test_a_named_operator_is_taken_without_regard_to_permissions(api):
    api.served |= TRAIN_JOBS
    api.train_job_fields, api.denied = CURRENT, {"create tfjobs", "create trainjobs"}
    for key in ("training-operator", "trainer"):
        reason = f"distribution_specification has operator = {key}"
        assert choose_operator(api.connect(), "TF", key) == OperatorChoice(key, None, reason)
    assert api.requests == []


@pytest.mark.parametrize(
    ("key", "served", "error"),
    [
        (
            "trainer",
            {"kubeflow.org/v1": ["tfjobs"]},
            'operator = "trainer": the cluster does not serve TrainJob: install Kubeflow Trainer 2.3, or choose '
            'another distribution_type (Job needs no operator), or set operator to "auto"',
        ),
        (
            "trainer",
            TRAIN_JOBS,
            'operator = "trainer": the cluster serves TrainJob of a Kubeflow Trainer before 2.2, which has no '
            'spec.runtimePatches; install Kubeflow Trainer 2.3, or set operator to "auto"',
        ),
        (
            "training-operator",
            TRAIN_JOBS,
            'operator = "training-operator": the cluster does not serve MPIJob: install the Kubeflow training operator '
            "or the MPI operator, or choose another distribution_type (Job needs no operator), or set operator to "
            '"auto"',
        ),
    ],
)
def test_a_named_operator_that_the_cluster_lacks_is_refused(api, key, served, error):
    api.served, api.train_job_fields = served, PAST
    with pytest.raises(ValueError, match=f"^{re.escape(error)}$"):
        choose_operator(api.connect(), "MPI", key)


def test_a_named_training_operator_without_the_type_of_the_job_is_refused(api):
    api.served = {"kubeflow.org/v1": ["mpijobs"], **TRAIN_JOBS}
    with pytest.raises(ValueError, match=r'^operator = "training-operator": .* not serve TFJob: .*"auto"$'):
        choose_operator(api.connect(), "TF", "training-operator")


def test_an_account_without_permissions_is_told_all_of_them(api):
    api.served |= TRAIN_JOBS
    api.train_job_fields = CURRENT
    api.denied = {"create tfjobs", "create trainjobs", "patch trainingruntimes", "create configmaps"}
    error = (
        "for TFJob the account lacks create tfjobs.kubeflow.org; for TrainJob the account lacks create "
        "trainjobs.trainer.kubeflow.org, patch trainingruntimes.trainer.kubeflow.org; for both it lacks create "
        "configmaps. To solve this, run kfp-distributed install --namespace default (and "
    )
    with pytest.raises(ValueError, match=re.escape(error)):
        choose_operator(api.connect(), "TF", "auto")


def test_an_unreadable_cluster_is_no_choice(api):
    api.forbidden.add("GET trainer.kubeflow.org/v1alpha1")
    with pytest.raises(ClusterError, match="is forbidden"):
        choose_operator(api.connect(), "TF", "auto")


def test_the_runner_logs_the_choice_once(api):
    api.served |= TRAIN_JOBS
    api.train_job_fields = CURRENT
    lines = []
    runner = KubernetesRunner(api.connect(), ClusterSettings("default"), lambda *line: lines.append(line))
    job = make_job((), {"distribution_type": "TF"})
    runner.check(job)
    runner.adopt(job)
    assert lines == [
        (
            "INFO",
            "operator auto takes training-operator: the cluster serves TFJob and TrainJob, and auto prefers TFJob",
        )
    ]


def test_a_train_job_needs_permissions_for_its_runtime_too():
    group = "trainer.kubeflow.org"
    assert [entry for entry in needed_permissions(TRAIN_JOB) if entry[1] == group] == [
        *((verb, group, "trainjobs") for verb in ("create", "get", "list", "watch", "patch", "delete")),
        *((verb, group, "trainingruntimes") for verb in ("create", "patch", "delete")),
    ]
    older = JobKind("TFJob", "kubeflow.org", "v1", "tfjobs")
    others = [[entry for entry in needed_permissions(kind) if entry[1] == ""] for kind in (older, TRAIN_JOB)]
    assert others[0] == others[1]
