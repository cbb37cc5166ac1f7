"""What the doctor makes of the kinds that a cluster serves and of its operators, by whole checks."""

import pytest

from kfp_distributed.cli.cluster_checks.checks import Check, Permission, Question, Refusal
from kfp_distributed.cli.cluster_checks.operator_checks import (
    choose_kinds,
    judge_kinds,
    judge_kserve,
    judge_operators,
    kinds_of,
)
from kfp_distributed.cli.setup.libraries import StepLibrary
from kfp_distributed.components.train.describe.manifests import job_kind
from kfp_distributed.components.train.describe.manifests.train_job import TRAIN_JOB
from kfp_distributed.components.train.run.runners.kubernetes.create.choose_operator import Offer

QUESTION = Question("team", "python:3.11", account="pipeline-runner")
TRAINER = Offer(TRAIN_JOB, True)
ABSENT, OLD = TRAINER._replace(is_served=False), TRAINER._replace(is_outdated=True)
BARE = {"batch/v1": {"jobs"}, "kubeflow.org/v1": set(), "kubeflow.org/v2beta1": set()}
TRAINING = {**BARE, "kubeflow.org/v1": {"tfjobs", "pytorchjobs", "mpijobs", "xgboostjobs"}}
BOTH = {**BARE, "kubeflow.org/v1": {"tfjobs", "pytorchjobs"}, "kubeflow.org/v2beta1": {"mpijobs"}}

INSTALL_TRAINING = (
    "kubectl apply --server-side --kustomize "
    "'github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.2'"
)
OPERATOR = "deployment/training-operator --namespace kubeflow"
INSTALL_TRAINER = (
    "kubectl apply --server-side --kustomize "
    "'https://github.com/kubeflow/trainer.git/manifests/overlays/manager?ref=v2.3.0'"
)
INSTALL_MPI = (
    "kubectl apply --server-side --filename "
    "https://raw.githubusercontent.com/kubeflow/mpi-operator/v0.6.0/deploy/v2beta1/mpi-operator.yaml"
)
INSTALL_KSERVE = "install KServe 0.11 or later"


def deployment(name="training-operator", ready=1, replicas=1, args=(), image="operators:2"):
    container = {"name": "manager", "image": image, "args": list(args)}
    return {
        "metadata": {"name": name, "namespace": "kubeflow"},
        "spec": {"replicas": replicas, "template": {"spec": {"containers": [container]}}},
        "status": {"readyReplicas": ready} if ready else {},
    }


def operators(served, deployments, question=QUESTION):
    return [tuple(check) for check in judge_operators(question, kinds_of(served), deployments)]


class TestKinds:
    def test_all_kinds_are_served(self):
        assert list(judge_kinds(QUESTION, kinds_of(BOTH), ABSENT)) == [
            Check("Job", "ok", "served as batch/v1"),
            Check("TFJob", "ok", "served as kubeflow.org/v1"),
            Check("PyTorchJob", "ok", "served as kubeflow.org/v1"),
            Check("MPIJob", "ok", "served as kubeflow.org/v2beta1"),
        ]

    def test_a_missing_kind_is_a_warning_if_no_type_is_chosen(self):
        assert list(judge_kinds(QUESTION, kinds_of(BARE), ABSENT))[1:] == [
            Check(f"{kind}Job", "warning", f"not served, so distribution_type {kind} cannot be used", INSTALL_TRAINING)
            for kind in ("TF", "PyTorch", "MPI")
        ]

    def test_a_missing_kind_fails_if_its_type_is_chosen(self):
        served = {**BARE, "kubeflow.org/v1": {"tfjobs"}}
        assert list(judge_kinds(Question("team", "", "MPI"), kinds_of(served), ABSENT)) == [
            Check("MPIJob", "failed", "not served, so distribution_type MPI cannot be used", INSTALL_MPI)
        ]

    def test_a_kind_that_is_not_served_is_no_problem_if_train_jobs_are(self):
        assert list(judge_kinds(QUESTION, kinds_of(BARE), TRAINER)) == [
            Check("Job", "ok", "served as batch/v1"),
            Check("TrainJob", "ok", "served as trainer.kubeflow.org/v1alpha1"),
        ]

    @pytest.mark.parametrize(("operator", "level"), [("auto", "warning"), ("trainer", "failed")])
    def test_a_trainer_that_is_too_old(self, operator, level):
        question = Question("team", "", "TF", operator)
        message = (
            "served as trainer.kubeflow.org/v1alpha1 by a Kubeflow Trainer before 2.2, which has no spec.runtimePatches"
            ", so it cannot be used"
        )
        checks = list(judge_kinds(question, kinds_of(BOTH), OLD))
        assert checks[-1] == Check("TrainJob", level, message, INSTALL_TRAINER)
        assert [check.name for check in checks[:-1]] == ([] if operator == "trainer" else ["TFJob"])

    def test_a_trainer_that_is_required_and_missing_fails(self):
        assert list(judge_kinds(Question("team", "", "TF", "trainer"), kinds_of(BOTH), ABSENT)) == [
            Check("TrainJob", "failed", "not served, so operator trainer cannot be used", INSTALL_TRAINER)
        ]

    def test_a_required_training_operator_does_not_count_train_jobs(self):
        question = Question("team", "", "PyTorch", "training-operator")
        missing = "not served, so distribution_type PyTorch cannot be used"
        assert list(judge_kinds(question, kinds_of(BARE), TRAINER)) == [
            Check("PyTorchJob", "failed", missing, INSTALL_TRAINING)
        ]


class TestChoice:
    def choose(self, served, trainer, refused=(), question=QUESTION):
        used, checks = choose_kinds(question, kinds_of(served), trainer, refused)
        return {name: kind.kind for name, kind in used.items()}, checks

    def test_without_a_trainer_each_type_has_its_own_kind(self):
        reason = "auto takes training-operator: the cluster serves {} and not TrainJob"
        assert self.choose(BOTH, ABSENT) == (
            {"Job": "Job", "TF": "TFJob", "PyTorch": "PyTorchJob", "MPI": "MPIJob"},
            [Check(f"operator of {name}", "ok", reason.format(f"{name}Job")) for name in ("TF", "PyTorch", "MPI")],
        )

    def test_a_type_whose_kind_is_not_served_becomes_a_train_job(self):
        served = {**BARE, "kubeflow.org/v1": {"tfjobs"}}
        older = "auto takes training-operator: the cluster serves TFJob and TrainJob, and auto prefers TFJob"
        newer = "auto takes trainer: the cluster serves TrainJob and not {}Job"
        assert self.choose(served, TRAINER) == (
            {"Job": "Job", "TF": "TFJob", "PyTorch": "TrainJob", "MPI": "TrainJob"},
            [
                Check("operator of TF", "ok", older),
                *(Check(f"operator of {name}", "ok", newer.format(name)) for name in ("PyTorch", "MPI")),
            ],
        )

    def test_an_account_that_may_use_one_of_both(self):
        question = Question("team", "", "TF")
        refused = [Permission("create", "kubeflow.org", "tfjobs"), Permission("get", "kubeflow.org", "pytorchjobs")]
        reason = (
            "auto takes trainer: the cluster serves TFJob and TrainJob, and the account lacks create "
            "tfjobs.kubeflow.org"
        )
        assert self.choose(BOTH, TRAINER, refused, question) == (
            {"TF": "TrainJob"},
            [Check("operator of TF", "ok", reason)],
        )

    def test_an_account_that_may_use_neither(self):
        question = Question("team", "", "TF", account="default-editor")
        refused = [
            Permission("create", "kubeflow.org", "tfjobs"),
            Permission("create", "trainer.kubeflow.org", "trainjobs"),
        ]
        message = (
            "the account may use neither TFJob nor TrainJob; with permissions, auto takes training-operator: "
            "the cluster serves TFJob and TrainJob, and auto prefers TFJob"
        )
        fix = "kfp-distributed install --namespace team --service-account default-editor"
        assert self.choose(BOTH, TRAINER, refused, question) == (
            {"TF": "TFJob"},
            [Check("operator of TF", "warning", message, fix)],
        )

    @pytest.mark.parametrize("trainer", [TRAINER, OLD])
    def test_unknown_permissions_count_as_granted(self, trainer):
        assert self.choose(BOTH, trainer, Refusal("forbidden"))[0]["TF"] == "TFJob"

    def test_a_named_operator_needs_no_reason(self):
        assert self.choose(BOTH, TRAINER, (), Question("team", "", "TF", "trainer")) == ({"TF": "TrainJob"}, [])
        assert self.choose(BOTH, TRAINER, (), Question("team", "", "TF", "training-operator")) == ({"TF": "TFJob"}, [])
        assert self.choose(BOTH, OLD, (), Question("team", "", "TF", "trainer")) == ({}, [])


class TestOperators:
    def test_a_batch_job_needs_no_operator(self):
        assert operators(BARE, []) == []

    def test_a_ready_operator_is_ok(self):
        schemes = ["--enable-scheme=tfjob", "--enable-scheme=pytorchjob"]
        assert operators(BOTH, [deployment(args=schemes), deployment("mpi", image="mpioperator/mpi-operator:0.6")]) == [
            (
                "training-operator",
                "ok",
                "deployment/training-operator --namespace kubeflow is ready and watches TFJob, PyTorchJob",
                "",
            ),
            ("mpi-operator", "ok", "deployment/mpi --namespace kubeflow is ready and watches MPIJob", ""),
        ]

    @pytest.mark.parametrize(
        ("deployments", "message", "fix"),
        [
            (
                [deployment("another"), deployment(args=["--namespace=elsewhere"])],
                "no Deployment of it watches team, so the pods of TFJob, PyTorchJob, MPIJob would not be created",
                INSTALL_TRAINING,
            ),
            (
                [deployment(ready=0)],
                f"{OPERATOR} is not ready, so TFJob, PyTorchJob, MPIJob would wait",
                "kubectl describe deployment/training-operator --namespace kubeflow, and check its pods",
            ),
            (
                [deployment(ready=0, replicas=0)],
                f"{OPERATOR} is not ready, so TFJob, PyTorchJob, MPIJob would wait",
                "kubectl scale deployment/training-operator --namespace kubeflow --replicas 1",
            ),
            (
                [deployment(args=["--enable-scheme=tfjob", "-enable-scheme=PyTorchJob"])],
                "deployment/training-operator --namespace kubeflow does not watch MPIJob",
                "kubectl edit deployment/training-operator --namespace kubeflow, and add the arguments "
                "--enable-scheme for MPIJob",
            ),
        ],
    )
    def test_an_operator_that_is_missing_or_not_ready_fails(self, deployments, message, fix):
        assert operators(TRAINING, deployments) == [("training-operator", "failed", message, fix)]

    def test_a_ready_operator_takes_precedence_over_one_that_is_not_ready(self):
        assert operators(TRAINING, [deployment(ready=0), deployment("training-operator-2")])[0][1] == "ok"

    def test_an_operator_that_only_watches_this_namespace_is_ok(self):
        assert operators(TRAINING, [deployment(args=["--namespace=team"])])[0][1] == "ok"

    def test_deployments_that_cannot_be_listed_are_a_warning(self):
        assert operators(TRAINING, Refusal("deployments.apps is forbidden")) == [
            (
                "training-operator",
                "warning",
                "cannot check whether it runs, for TFJob, PyTorchJob, MPIJob: deployments.apps is forbidden",
                "ask somebody who may list Deployments: kubectl get deployments --all-namespaces",
            )
        ]

    def test_a_removed_operator_may_have_left_its_kinds_on_a_cluster_with_kubeflow_trainer(self):
        (check,) = judge_operators(QUESTION, {"TF": job_kind("TF")}, [], has_trainer=True)
        fix = f'{INSTALL_TRAINING}, or set operator to "trainer" in the distribution_specification'
        missing = "no Deployment of it watches team, so the pods of TFJob would not be created"
        assert check == Check("training-operator", "failed", missing, fix)

    def test_a_train_job_needs_its_controller_and_that_of_jobsets(self):
        controllers = [deployment("kubeflow-trainer-controller-manager"), deployment("jobset-controller-manager")]
        kinds = {"TF": TRAIN_JOB, "MPI": TRAIN_JOB, "Job": job_kind("Job")}
        ok = "deployment/{} --namespace kubeflow is ready and watches {}"
        assert judge_operators(QUESTION, kinds, controllers) == [
            Check("kubeflow-trainer", "ok", ok.format("kubeflow-trainer-controller-manager", "TrainJob")),
            Check("jobset", "ok", ok.format("jobset-controller-manager", "JobSet")),
        ]
        missing = "no Deployment of it watches team, so the pods of {} would not be created"
        install_jobset = (
            "kubectl apply --server-side --filename "
            "https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml"
        )
        assert judge_operators(QUESTION, kinds, []) == [
            Check("kubeflow-trainer", "failed", missing.format("TrainJob"), INSTALL_TRAINER),
            Check("jobset", "failed", missing.format("JobSet"), install_jobset),
        ]


@pytest.mark.parametrize(
    ("steps", "served", "level", "message", "fix"),
    [
        ([], [], "ok", "not served; only deploy_model needs KServe", ""),
        (["train"], [], "ok", "not served; only deploy_model needs KServe", ""),
        (["train", "deploy-model"], [], "failed", "not served, and deploy-model needs KServe", INSTALL_KSERVE),
        (["deploy-model-2"], [], "failed", "not served, and deploy-model-2 needs KServe", INSTALL_KSERVE),
        (["my-deploy-model"], [], "ok", "not served; only deploy_model needs KServe", ""),
        ([], ["v1beta1"], "ok", "served as serving.kserve.io/v1beta1", ""),
        ([], ["v1", "v1beta1"], "ok", "served as serving.kserve.io/v1beta1", ""),
        (
            [],
            ["v1", "v1alpha2"],
            "warning",
            "served as serving.kserve.io/v1, v1alpha2, and deploy_model needs v1beta1",
            INSTALL_KSERVE,
        ),
        (
            ["deploy-model"],
            ["v1"],
            "failed",
            "served as serving.kserve.io/v1, and deploy_model needs v1beta1",
            INSTALL_KSERVE,
        ),
    ],
)
def test_the_served_versions_of_kserve(steps, served, level, message, fix):
    libraries = tuple(StepLibrary(step, "kfp-distributed-1-0", "0") for step in steps)
    result = judge_kserve(Question("team", "", libraries=libraries), served)
    assert result == Check("InferenceService", level, message, fix)
