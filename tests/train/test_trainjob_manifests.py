"""Whole TrainJobs and TrainingRuntimes: one of each type is written out here."""

import json
import os
import subprocess
from copy import deepcopy
from dataclasses import replace

import pytest
from train.test_manifests import (
    CODE_CHECK,
    LABELS,
    RANK_ARGUMENTS,
    SETTINGS,
    UNLESS_TRAINED,
    WATCHED,
    containers_of,
    job,
    limits,
    template,
    with_gpus,
)

from kfp_distributed.components.train.describe.distributions import parse_distribution
from kfp_distributed.components.train.describe.manifests import HASH_ANNOTATION, JobKind
from kfp_distributed.components.train.describe.manifests.job_objects import plan_objects
from kfp_distributed.components.train.describe.manifests.train_job import (
    DISTRIBUTION_ANNOTATION,
    TRAIN_JOB,
    TRAINING_RUNTIME,
    train_job_manifest,
    training_runtime_manifest,
)
from kfp_distributed.components.train.describe.manifests.train_job_names import ReplicaNames, train_job_names
from kfp_distributed.components.train.describe.topology import plan_topology
from kfp_distributed.library.content import content_hash
from kfp_distributed.trainers.runtime.ranks.cluster import Cluster, read_cluster
from kfp_distributed.trainers.runtime.ranks.replica import replica_name

API_VERSION = "trainer.kubeflow.org/v1alpha1"
TRAINER = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
INDEX_SOURCE = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
INDEX = {"name": "JOB_COMPLETION_INDEX", "valueFrom": INDEX_SOURCE}
RESTART_RULES = [
    {
        "name": "preemption_or_outage",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
        "onJobFailureMessagePatterns": ["has condition DisruptionTarget", "failed with exit code (140) "],
    },
    {"name": "permanent", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
]
EXHAUSTED = {"name": "exhausted", "action": "FailJobSet", "onJobFailureReasons": ["BackoffLimitExceeded"]}


def runtime_of(planned, settings=SETTINGS):
    """Return a TrainingRuntime without the check of the code, with which the commands of all containers begin."""
    manifest = training_runtime_manifest(planned, settings)
    content = content_hash({**settings.library, "job.json": planned.description.to_json().encode()})
    paths = ["/kfp-distributed/code", "/kfp-distributed/checked", "/kfp-distributed/work/peak-memory"]
    check = ["python3", "-I", "-c", CODE_CHECK, "a-job-code", content, *paths]
    for container in containers_of(manifest):
        assert container["command"][: len(check)] == check
        container["command"] = container["command"][len(check) :]
    return manifest


def spec_of(distribution_type, settings=SETTINGS, **keys):
    return runtime_of(job(distribution_type, **keys), settings)["spec"]


def jobset_of(distribution_type, settings=SETTINGS, **keys):
    return spec_of(distribution_type, settings, **keys)["template"]["spec"]


def job_specs_of(distribution_type, settings=SETTINGS, **keys):
    """Return the spec of each Job by the name of its replicatedJob."""
    jobs = jobset_of(distribution_type, settings, **keys)["replicatedJobs"]
    return {entry["name"]: entry["template"]["spec"] for entry in jobs}


def train_job_of(planned, settings=SETTINGS):
    manifest = train_job_manifest(planned, settings)
    annotated = json.loads(manifest["metadata"]["annotations"].pop(DISTRIBUTION_ANNOTATION))
    assert plan_topology(parse_distribution(annotated)) == planned.topology
    assert len(manifest["metadata"]["annotations"].pop(HASH_ANNOTATION)) == 32
    return manifest


def train_job(**spec):
    """Return the expected TrainJob, with these fields besides the reference to its runtime."""
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": "a-job"}
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainJob",
        "metadata": {"name": "a-job", "namespace": "training", "labels": LABELS, "annotations": {}},
        "spec": {"runtimeRef": reference, **spec},
    }


def runtime(jobset, **spec):
    """Return the expected TrainingRuntime with this spec of its JobSet, and these fields besides the template."""
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainingRuntime",
        "metadata": {"name": "a-job", "namespace": "training", "labels": LABELS},
        "spec": {**spec, "template": {"metadata": {"labels": LABELS}, "spec": jobset}},
    }


def jobset(leader, max_restarts, rules, *jobs):
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [leader]},
        "failurePolicy": {"maxRestarts": max_restarts, "rules": rules},
        "replicatedJobs": list(jobs),
    }


def failure_rules(action, permanent=True):
    codes = {"containerName": "node", "operator": "In"}
    rules = [
        {"action": action, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": action, "onExitCodes": {**codes, "values": [140]}},
    ]
    return [*rules, {"action": "FailJob", "onExitCodes": {**codes, "values": list(range(1, 128))}}][: 2 + permanent]


def replicated_job(name, count, pod, env, leads=False, backoff_limit=0, permanent=True, first="", **more):
    """Return the expected replicatedJob.

    Args:
        name: Its name.
        count: Number of pods.
        pod: Expected pod template.
        env: Variables of the container after the common ones.
        leads: Whether the leader of the job is among the pods.
        backoff_limit: Restarts of single pods.
        permanent: Whether exit codes 1 to 127 are permanent failures.
        first: Replica with index 0; index 0 of the role, if it is "".
        more: Fields of the spec of the Job.
    """
    pod = deepcopy(pod)
    container = pod["spec"]["containers"][0]
    names = {entry["name"] for entry in env}
    container["env"] = [*(entry for entry in container["env"] if entry["name"] not in names), *env]
    pod["spec"]["restartPolicy"] = "Never"
    pod["metadata"]["labels"]["kfp-distributed/first-replica"] = first or f"{name}-0"
    spec = {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimit": backoff_limit,
        "podFailurePolicy": {"rules": failure_rules("Ignore" if backoff_limit else "FailJob", permanent)},
        "template": pod,
        **more,
    }
    metadata = {"labels": {**LABELS, **(TRAINER if leads else {})}}
    return {"name": name, "replicas": 1, "template": {"metadata": metadata, "spec": spec}}


def variables(**values):
    return [{"name": name, "value": value} for name, value in values.items()]


def named(role):
    return [INDEX, *variables(KFP_DISTRIBUTED_REPLICA=f"{role}-$(JOB_COMPLETION_INDEX)")]


FIRST_INDEX = {"successPolicy": {"rules": [{"succeededIndexes": "0"}]}}


def test_the_manifests_of_a_pytorch_job():
    planned = job("PyTorch", number_of_workers=3, worker_gpus=2, worker_cpus=1, launcher_cpus=1)
    assert train_job_of(planned) == train_job(trainer={"numProcPerNode": 2})
    env = variables(MASTER_ADDR="a-job-node-0-0.a-job", MASTER_PORT="29500", WORLD_SIZE="8", PYTHONUNBUFFERED="1")
    # The master is node 0.
    node = replicated_job(
        "node",
        4,
        with_gpus(2, template("node", limits(**{"cpu": "1", "nvidia.com/gpu": "2"}))),
        [*env, INDEX, {"name": "RANK", "valueFrom": INDEX_SOURCE}],
        leads=True,
        first="master-0",
        **FIRST_INDEX,
    )
    expected = jobset("node", 16, RESTART_RULES, node)
    assert runtime_of(planned) == runtime(expected, mlPolicy={"numNodes": 4, "torch": {}})


WORKER_COMMAND = [
    *("sh", "-c", 'RANK=$((JOB_COMPLETION_INDEX + 1)) && export RANK PET_NODE_RANK=$RANK && exec "$@"', "sh"),
    *("python3", "-m", "kfp_distributed.trainers.runtime.entry"),
]
RANK_ZERO = variables(RANK="0", PET_NODE_RANK="0")


def test_a_pytorch_master_with_other_resources_has_a_template_of_its_own():
    planned = job("PyTorch", number_of_workers=3, slots_per_worker=2, worker_cpus=4, launcher_memory="1Gi")
    assert train_job_of(planned) == train_job()
    env = variables(
        MASTER_ADDR="a-job-master-0-0.a-job",
        MASTER_PORT="29500",
        PET_MASTER_ADDR="a-job-master-0-0.a-job",
        PET_MASTER_PORT="29500",
        WORLD_SIZE="8",
        PET_NPROC_PER_NODE="2",
        PET_NNODES="4",
        PYTHONUNBUFFERED="1",
    )
    master = template("node", limits(memory="1Gi"))
    worker = template("node", limits(cpu="4"), command=WORKER_COMMAND)
    jobs = [
        replicated_job("master", 1, master, [*env, *named("master"), *RANK_ZERO], leads=True),
        replicated_job("worker", 3, worker, [*env, *named("worker")]),
    ]
    assert runtime_of(planned) == runtime(jobset("master", 16, RESTART_RULES, *jobs))


def test_the_rank_of_a_worker_is_its_index_plus_1():
    environment = {"PATH": os.environ["PATH"], "JOB_COMPLETION_INDEX": "2"}
    printed = subprocess.run([*WORKER_COMMAND[:4], "env"], env=environment, check=True, capture_output=True, text=True)
    assert {"RANK=3", "PET_NODE_RANK=3"} <= set(printed.stdout.splitlines())


def test_workers_of_an_elastic_pytorch_job_are_restarted_alone():
    planned = job("PyTorch", number_of_workers=3, min_workers=1, restart_limit=2)
    assert train_job_of(planned) == train_job()
    env = {
        "MASTER_ADDR": "a-job-master-0-0.a-job",
        "MASTER_PORT": "29500",
        "PET_MASTER_ADDR": "a-job-master-0-0.a-job",
        "PET_MASTER_PORT": "29500",
        "WORLD_SIZE": "4",
        "PET_NPROC_PER_NODE": "1",
        "PET_NNODES": "2:4",
        "PYTHONUNBUFFERED": "1",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "a-job-master-0-0.a-job:29500",
        "PET_RDZV_CONF": "last_call_timeout=10,is_host=1",
        "PET_MAX_RESTARTS": "2",
    }
    of_worker = {**env, "PET_RDZV_CONF": "last_call_timeout=10,is_host=0"}
    jobs = [
        replicated_job("master", 1, template("node"), [*variables(**env), *named("master"), *RANK_ZERO], leads=True),
        replicated_job(
            "worker",
            3,
            template("node", command=WORKER_COMMAND),
            [*variables(**of_worker), *named("worker")],
            backoff_limit=9,
        ),
    ]
    rules = [*RESTART_RULES, {**EXHAUSTED, "targetReplicatedJobs": ["worker"]}]
    assert runtime_of(planned) == runtime(jobset("master", 12, rules, *jobs))


def test_the_manifests_of_a_tf_job():
    keys = {"worker_cpus": 4, "worker_memory": "8Gi", "worker_gpus": 1, "ps_cpus": 1, "launcher_memory": "2Gi"}
    planned = job("TF", number_of_workers=2, number_of_parameter_servers=1, evaluator=True, **keys)
    assert train_job_of(planned) == train_job()
    cluster = (
        '{"cluster": {"chief": ["a-job-chief-0-0.a-job:2222"], "ps": ["a-job-ps-0-0.a-job:2222"], '
        '"worker": ["a-job-worker-0-0.a-job:2222", "a-job-worker-0-1.a-job:2222"], '
        '"evaluator": ["a-job-evaluator-0-0.a-job:2222"]}, '
    )

    def env(role):
        task = f'"task": {{"type": "{role}", "index": $(JOB_COMPLETION_INDEX)}}, "environment": "cloud"}}'
        return [*named(role), *variables(TF_CONFIG=cluster + task)]

    worker = template("node", limits(**{"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"}))
    jobs = [
        replicated_job("chief", 1, template("node", limits(memory="2Gi")), env("chief"), leads=True),
        replicated_job("ps", 1, template("node", limits(cpu="1", memory="8Gi")), env("ps")),
        replicated_job("worker", 2, worker, env("worker"), backoff_limit=8),
        replicated_job("evaluator", 1, worker, env("evaluator"), backoff_limit=4),
    ]
    rules = [*RESTART_RULES, {**EXHAUSTED, "targetReplicatedJobs": ["evaluator", "worker"]}]
    assert runtime_of(planned) == runtime(jobset("chief", 20, rules, *jobs))


def test_without_a_chief_worker_0_decides_about_success():
    planned = job("TF", number_of_workers=2, number_of_parameter_servers=0)
    config = (
        '{"cluster": {"worker": ["a-job-worker-0-0.a-job:2222", "a-job-worker-0-1.a-job:2222"]}, '
        '"task": {"type": "worker", "index": $(JOB_COMPLETION_INDEX)}, "environment": "cloud"}'
    )
    env = [*named("worker"), *variables(TF_CONFIG=config)]
    workers = replicated_job("worker", 2, template("node"), env, leads=True, **FIRST_INDEX)
    assert runtime_of(planned) == runtime(jobset("worker", 8, RESTART_RULES, workers))


def test_a_single_tf_worker_has_no_cluster():
    (workers,) = jobset_of("TF", number_of_workers=1, number_of_parameter_servers=0)["replicatedJobs"]
    assert workers == replicated_job("worker", 1, template("node"), named("worker"), leads=True)


SSH = (
    "-p 2222 -i /kfp-distributed/ssh/id_rsa -o IdentitiesOnly=yes "
    "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectionAttempts=10"
)
SSHD = [
    *("/usr/sbin/sshd", "-De", "-f", "/dev/null", "-p", "2222", "-h", "/kfp-distributed/ssh/id_rsa"),
    *("-o", "AuthorizedKeysFile=/kfp-distributed/ssh/authorized_keys", "-o", "StrictModes=no", "-o", "PidFile=none"),
]
MPIRUN = [
    *("mpirun", "--allow-run-as-root", "--bind-to", "none", "--tag-output", "-np", "6", "--map-by", "slot"),
    *("--mca", "btl_vader_single_copy_mechanism", "none", "--mca", "mpi_yield_when_idle", "1"),
    *("--mca", "plm_rsh_args", SSH),
]


def test_the_manifests_of_an_mpi_job():
    planned = job("MPI", number_of_workers=3, slots_per_worker=2, worker_cpus=2, launcher_cpus=1)
    assert train_job_of(planned) == train_job(trainer={"numNodes": 3, "numProcPerNode": 2})
    worker = template(
        "node",
        limits(cpu="2"),
        command=[*WATCHED, "--idle", *SSHD],
        startupProbe={
            "exec": {"command": ["test", "-e", "/kfp-distributed/checked/job.json"]},
            "periodSeconds": 1,
            "failureThreshold": 300,
        },
    )
    command = [*WATCHED, *UNLESS_TRAINED, *MPIRUN, *RANK_ARGUMENTS[:-7], *RANK_ARGUMENTS[-3:]]
    launcher = template("node", limits(cpu="1"), command=command)
    jobs = [
        replicated_job("node", 3, worker, named("worker"), permanent=False, first="worker-0"),
        {
            **replicated_job("launcher", 1, launcher, named("launcher"), leads=True, permanent=False),
            "dependsOn": [{"name": "node", "status": "Ready"}],
        },
    ]
    policy = {
        "numProcPerNode": 2,
        "mpiImplementation": "OpenMPI",
        "sshAuthMountPath": "/kfp-distributed/ssh",
        "runLauncherAsNode": False,
    }
    expected = runtime(jobset("launcher", 16, RESTART_RULES, *jobs), mlPolicy={"numNodes": 1, "mpi": policy})
    assert runtime_of(planned) == expected


def test_the_kinds_are_those_of_trainer():
    group, version = API_VERSION.split("/")
    assert JobKind("TrainJob", group, version, "trainjobs") == TRAIN_JOB
    assert JobKind("TrainingRuntime", group, version, "trainingruntimes") == TRAINING_RUNTIME


def test_the_names_of_all_objects():
    names = train_job_names(job("TF", number_of_workers=2, number_of_parameter_servers=1))
    assert (names.train_job, names.snapshot, names.mpi_keys, names.mpi_hosts) == (
        "a-job",
        "a-job-runtime-snapshot",
        None,
        None,
    )
    assert names.jobs == ("a-job-chief-0", "a-job-ps-0", "a-job-worker-0")
    assert list(names.replicas) == ["chief-0", "ps-0", "worker-0", "worker-1"]
    assert names.replicas["worker-1"] == ReplicaNames(
        "worker", 1, "a-job-worker-0", "a-job-worker-0-1", "a-job-worker-0-1.a-job"
    )


def test_the_names_of_nodes():
    mpi = train_job_names(job("MPI", number_of_workers=2))
    assert {name: replica.host for name, replica in mpi.replicas.items()} == {
        "launcher-0": "a-job-launcher-0-0",
        "worker-0": "a-job-node-0-0",
        "worker-1": "a-job-node-0-1",
    }
    assert (mpi.mpi_keys, mpi.mpi_hosts) == ("a-job-mpi-ssh-auth", "a-job-mpi-hostfile")
    torch = train_job_names(job("PyTorch", number_of_workers=2))
    assert {name: (replica.host, replica.index) for name, replica in torch.replicas.items()} == {
        "master-0": ("a-job-node-0-0", 0),
        "worker-0": ("a-job-node-0-1", 1),
        "worker-1": ("a-job-node-0-2", 2),
    }
    roles = train_job_names(job("PyTorch", number_of_workers=2, worker_cpus=1))
    assert [replica.host for replica in roles.replicas.values()] == [
        "a-job-master-0-0",
        "a-job-worker-0-0",
        "a-job-worker-0-1",
    ]


def test_the_objects_of_a_train_job():
    """Its runtime must exist before it. Pods are created through Jobs of their own, whose events have the causes."""
    planned = job("TF", number_of_workers=2, number_of_parameter_servers=1)
    objects = plan_objects(planned, replace(SETTINGS, operator="trainer"))
    runtimes = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/training/trainingruntimes"
    assert (objects.kind, objects.runtimes_path) == (TRAIN_JOB, runtimes)
    assert objects.manifest == train_job_manifest(planned, replace(SETTINGS, operator="trainer"))
    assert objects.runtime == training_runtime_manifest(planned, replace(SETTINGS, operator="trainer"))
    assert objects.event_names == ("a-job", "a-job-chief-0", "a-job-ps-0", "a-job-worker-0")


def test_a_job_with_one_pod_needs_no_operator():
    planned = job("Job")
    assert plan_objects(planned, replace(SETTINGS, operator="trainer")) == plan_objects(planned, SETTINGS)


@pytest.mark.parametrize("distribution_type", ["TF", "PyTorch", "MPI"])
def test_a_replica_knows_its_name_by_its_variables(distribution_type):
    for keys in ({}, {"worker_cpus": 1}):
        planned = job(distribution_type, number_of_workers=3, **keys)
        specs = job_specs_of(distribution_type, number_of_workers=3, **keys)
        for name, names in train_job_names(planned).replicas.items():
            container = specs[names.replicated_job]["template"]["spec"]["containers"][0]
            environment = {
                entry["name"]: entry.get("value", str(names.index)).replace("$(JOB_COMPLETION_INDEX)", str(names.index))
                for entry in container["env"]
            }
            cluster = read_cluster(environment)
            assert replica_name(environment, cluster, planned.description) == name
            if distribution_type == "TF":
                addresses = cluster.addresses[cluster.role]
                assert addresses[cluster.index] == f"{names.address}:2222"
                assert (cluster.role, cluster.index) == (names.replicated_job, names.index)
            else:
                assert cluster == Cluster()
