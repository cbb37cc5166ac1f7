"""What the commands show of a training's objects."""

from datetime import UTC, datetime

import pytest
from train.programs.jobs import make_job, workers

from kfp_distributed.cli.jobs.cluster_jobs import ClusterJob, JobRow, grace_seconds, job_rows, objects_of
from kfp_distributed.cli.jobs.job_logs import read_entries
from kfp_distributed.cli.text_table import format_table
from kfp_distributed.components.train.describe.distributions import parse_distribution
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.job_objects import plan_objects
from kfp_distributed.components.train.run.shown_progress.log_entry import LogEntry

NOW = datetime(2026, 11, 23, 14, 5, 12, tzinfo=UTC)


def cluster_job(distribution, mpi_version=None, status=None, operator="training-operator", **metadata):
    job = make_job((), distribution)
    settings = ClusterSettings("team-a", image="image", mpi_version=mpi_version, operator=operator)
    objects = plan_objects(job, settings)
    manifest = objects.manifest
    about = {"creationTimestamp": "2026-11-23T14:00:00Z", **manifest["metadata"], **metadata}
    return job, ClusterJob(objects.kind, {**manifest, "metadata": about, "status": status or {}})


@pytest.mark.parametrize(
    ("distribution", "operator"),
    [
        ({"distribution_type": "TF", "number_of_workers": 2, "evaluator": True, "ps_cpus": 1}, "trainer"),
        (workers(3, restart_limit=1), "trainer"),
        ({"distribution_type": "PyTorch", "number_of_workers": 3, "worker_gpus": 2}, "trainer"),
        ({"distribution_type": "PyTorch", "min_workers": 1, "number_of_workers": 2}, "trainer"),
        ({"distribution_type": "MPI", "number_of_workers": 2, "slots_per_worker": 2, "restart_limit": 5}, "trainer"),
        ({}, None),
        ({"restart_limit": 0}, None),
        (workers(3, restart_limit=1), None),
        ({"distribution_type": "TF", "number_of_workers": 2, "evaluator": True}, None),
        ({"distribution_type": "PyTorch", "number_of_workers": 3, "slots_per_worker": 2}, None),
        ({"distribution_type": "PyTorch", "min_workers": 1, "max_workers": 4, "number_of_workers": 2}, None),
        ({"distribution_type": "MPI", "number_of_workers": 2, "slots_per_worker": 2}, "v1"),
        ({"distribution_type": "MPI", "number_of_workers": 2, "restart_limit": 5}, "v2beta1"),
        ({"distribution_type": "MPI", "min_workers": 1, "max_workers": 4}, "v1"),
    ],
    ids=str,
)
def test_the_replicas_and_restarts_of_a_job_are_read_from_its_object(distribution, operator):
    """`operator` is the version of MPIJob that an operator serves, or Kubeflow Trainer."""
    settings = {"operator": operator} if operator == "trainer" else {"mpi_version": operator}
    job, in_cluster = cluster_job(distribution, **settings)
    read = objects_of(in_cluster)
    assert (read.job.name, read.kind, read.path.rpartition("/")[2]) == (job.name, in_cluster.kind, job.name)
    assert [replica.name for replica in read.job.topology.replicas] == [
        replica.name for replica in job.topology.replicas
    ]
    assert (read.job.topology.leader, read.job.topology.spared, read.job.topology.restart_alone) == (
        job.topology.leader,
        job.topology.spared,
        job.topology.restart_alone,
    )
    for key in ("restart_limit", "slots_per_worker", "min_workers", "max_workers", "distribution_type"):
        assert getattr(read.job.specification, key) == getattr(job.specification, key), key


def pod(phase, job="a-job", **status):
    return {
        "metadata": {"name": "a", "labels": {"kfp-distributed/job": job}},
        "spec": {"nodeName": "a"},
        "status": {"phase": phase, **status},
    }


RUNNING = pod("Running", containerStatuses=[{"name": "tensorflow", "state": {"running": {}}}])
PULLING = pod("Pending", containerStatuses=[{"name": "tensorflow", "state": {"waiting": {"reason": "ErrImagePull"}}}])
OTHER = pod("Running", job="another", containerStatuses=[{"name": "tensorflow", "state": {"running": {}}}])


def condition(name):
    return {"conditions": [{"type": name, "status": "True"}]}


def test_each_pod_is_read_as_often_for_many_jobs_as_for_one():
    class CountedPod(dict):
        def __getitem__(self, key):
            reads.append(key)
            return super().__getitem__(key)

    jobs, reads, counts = [cluster_job(workers(1), name=f"job-{index}")[1] for index in range(100)], [], []
    for number in (1, 100):
        reads.clear()
        pods = [CountedPod(pod("Succeeded", f"job-{index % number}")) for index in range(100)]
        rows = job_rows(jobs[:number], pods, NOW)
        assert {row.replicas for row in rows} == {f"{100 // number}/1"}
        counts.append(len(reads))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("metadata", "status", "pods", "state", "replicas"),
    [
        ({}, {}, [OTHER], "waiting", "0/3"),
        ({}, condition("Created"), [PULLING, OTHER], "pulling", "0/3"),
        ({}, condition("Running"), [RUNNING, RUNNING, PULLING], "running", "2/3"),
        ({}, condition("Running"), [pod("Succeeded"), RUNNING, RUNNING], "running", "3/3"),
        ({}, condition("Restarting"), [pod("Failed")], "starting", "0/3"),
        ({}, condition("Succeeded"), [pod("Succeeded")], "succeeded", "1/3"),
        ({}, condition("Failed"), [], "failed", "0/3"),
        ({"deletionTimestamp": "2026-11-23T14:05:00Z"}, condition("Running"), [RUNNING], "deleting", "1/3"),
        ({}, condition("Running"), None, "waiting", "3"),
    ],
)
def test_rows(metadata, status, pods, state, replicas):
    labels = {"kfp-distributed/job": "a-job", "kfp-distributed/run": "4f5b0b1c", "kfp-distributed/task": "train"}
    labels |= {"kfp-distributed/sub-pipeline": "tune", "kfp-distributed/iteration": "1"}
    _, job = cluster_job(workers(3), status=status, labels=labels, **metadata)
    assert job_rows([job], pods, NOW) == [
        JobRow("a-job", "TFJob", state, replicas, "5 min 12 s", "tune/train[1]", "4f5b0b1c")
    ]


@pytest.mark.parametrize("kind", ["PyTorch", "MPI"])
@pytest.mark.parametrize(("workers", "limits"), [(5, (1, 5)), (0, (1, 3))])
def test_an_elastic_job_whose_workers_are_outside_of_its_limits_is_read(kind, workers, limits):
    """Anyone who may change the job can scale it."""
    elastic = {"distribution_type": kind, "min_workers": 1, "max_workers": 3, "number_of_workers": 2}
    _, job = cluster_job(elastic, "v1" if kind == "MPI" else None)
    job.manifest["spec"][f"{kind.lower()}ReplicaSpecs"]["Worker"]["replicas"] = workers
    row = JobRow("a-job", f"{kind}Job", "waiting", f"0/{workers + 1}", "5 min 12 s", "", "")
    assert job_rows([job], [], NOW) == [row]
    read = objects_of(job).job.specification
    assert (read.number_of_workers, read.min_workers, read.max_workers) == (max(1, workers), *limits)


def test_a_suspended_job_is_queued():
    _, job = cluster_job(workers(3, queue_name="team"))
    suspended = {**job.manifest["spec"], "runPolicy": {**job.manifest["spec"]["runPolicy"], "suspend": True}}
    assert job_rows([ClusterJob(job.kind, {**job.manifest, "spec": suspended})], [], NOW)[0].state == "queued"


def test_the_table_is_aligned():
    rows = [
        JobRow("train-8ccbe16558f9", "TFJob", "running", "4/4", "2 h 5 min", "tune/train[1]", "4f5b0b1c"),
        JobRow("fit-1", "MPIJob", "succeeded", "3", "12 s", "fit", ""),
    ]
    assert format_table(JobRow._fields, rows) == [
        "NAME                 TYPE     STATE       REPLICAS   AGE         TASK            RUN",
        "train-8ccbe16558f9   TFJob    running     4/4        2 h 5 min   tune/train[1]   4f5b0b1c",
        "fit-1                MPIJob   succeeded   3          12 s        fit",
    ]


def test_log_entries_of_a_container():
    lines = [
        "2026-11-23T14:05:12.123456789Z epoch 1/5 loss=0.3",
        "2026-11-23T15:05:12.5+01:00 10%\r20%\r",
        "2026-11-23T14:05:12.4Z sample memory=512MiB",
        "2026-11-23T14:05:12.6Z doingsample memory=512MiB",
        "2026-11-23T14:05:13.0Z ",
        "2026-11-23T14:05:13.1Z I0000 00:00:1.2 7 port.cc:153] oneDNN custom operations are on. You may see",
        "failed to watch the log file",
    ]
    time = NOW.timestamp()
    assert list(read_entries("worker-0", lines, parse_distribution({}))) == [
        LogEntry(time + 0.123456, "INFO", "worker-0", "epoch 1/5 loss=0.3"),
        LogEntry(time + 0.5, "INFO", "worker-0", "20%"),
        LogEntry(time + 0.6, "INFO", "worker-0", "doing"),
        LogEntry(time + 1.0, "INFO", "worker-0", ""),
        LogEntry(time + 1.1, "INFO", "worker-0", "failed to watch the log file"),
    ]


def test_log_entries_of_the_ranks_of_mpi():
    spec = parse_distribution({"distribution_type": "MPI", "number_of_workers": 2})
    lines = [
        "2026-11-23T14:05:12.0Z [1,1]<stdout>: epoch 1/5",
        "2026-11-23T14:05:12.0Z [1,1]<stdout>:sample memory=512MiB",
        "2026-11-23T14:05:12.0Z [1,0]<stdout>:row [1,1]<stdout>:begun",
        "2026-11-23T14:05:12.0Z [1,0]<stdout>:7[1,1]<stdout>:cut",
    ]
    assert list(read_entries("launcher-0", lines, spec)) == [
        LogEntry(NOW.timestamp(), "INFO", replica, text)
        for replica, text in (
            ("worker-1", "epoch 1/5"),
            ("worker-1", "begun"),
            ("worker-1", "cut"),
            ("worker-0", "row 7"),
        )
    ]


NULL_GRACE = (
    '{"distribution_type": "TF", "number_of_workers": 1, "number_of_parameter_servers": 0, '
    '"termination_grace_seconds": null}'
)


@pytest.mark.parametrize("text", [None, "", "[]", "{", '{"number_of_workers": 0}', "null", NULL_GRACE])
def test_a_train_job_with_a_changed_annotation_is_listed(text):
    _, in_cluster = cluster_job(
        workers(3), operator="trainer", annotations={"kfp-distributed/distribution": text or ""}
    )
    if text is None:
        del in_cluster.manifest["metadata"]["annotations"]
    (row,) = job_rows([in_cluster], None, NOW)
    assert (row.type, row.replicas) == ("TrainJob", "1")
    assert grace_seconds(in_cluster) == 30
