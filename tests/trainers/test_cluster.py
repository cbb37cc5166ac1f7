import json
from dataclasses import replace

import pytest

from kfp_distributed.trainers.runtime.job_description import JobDescription
from kfp_distributed.trainers.runtime.ranks.cluster import (
    Cluster,
    Rank,
    check_size,
    has_ranks,
    processors,
    read_cluster,
    read_rank,
)
from kfp_distributed.trainers.runtime.ranks.replica import replica_name
from kfp_distributed.trainers.runtime.ranks.tensorflow_settings import tensorflow_environment

LOCAL = {"chief": ["127.0.0.1:1"], "ps": ["127.0.0.1:2"], "worker": ["127.0.0.1:3", "127.0.0.1:4"]}
PODS = {
    "worker": ["job-worker-0.ns.svc:2222", "job-worker-1.ns.svc:2222"],
    "evaluator": ["job-evaluator-0.ns.svc:2222"],
}


def environment(cluster, role, index):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})}


@pytest.mark.parametrize(
    ("variables", "expected", "workers", "neighbours"),
    [
        ({}, Cluster(), 1, 1),
        ({"TF_CONFIG": ""}, Cluster(), 1, 1),
        (environment(LOCAL, "worker", 1), Cluster(LOCAL, "worker", 1), 2, 4),
        (environment(PODS, "worker", 1), Cluster(PODS, "worker", 1), 2, 1),
        (environment(PODS, "evaluator", "0"), Cluster(PODS, "evaluator", 0), 2, 1),
        (environment({"worker": ["a:1"]}, "worker", 0), Cluster({"worker": ["a:1"]}, "worker", 0), 1, 1),
    ],
)
def test_read_tf_config(variables, expected, workers, neighbours):
    cluster = read_cluster(variables)
    assert (cluster, cluster.workers, cluster.neighbours) == (expected, workers, neighbours)


def test_tf_config_of_strategies_has_no_evaluator():
    assert json.loads(read_cluster(environment(PODS, "worker", 1)).training_config()) == {
        "cluster": {"worker": PODS["worker"]},
        "task": {"type": "worker", "index": 1},
        "environment": "cloud",
    }


@pytest.mark.parametrize(
    ("variables", "cluster", "legacy_keras", "cpus", "expected"),
    [
        ({}, {}, False, 8, {"TF_NUM_INTRAOP_THREADS": "8"}),
        ({}, LOCAL, True, 2, {"TF_USE_LEGACY_KERAS": "1", "TF_NUM_INTRAOP_THREADS": "1"}),
        ({"TF_USE_LEGACY_KERAS": "0", "TF_NUM_INTRAOP_THREADS": "3"}, {}, True, 2, {}),
    ],
)
def test_replicas_of_one_machine_share_its_processors(variables, cluster, legacy_keras, cpus, expected):
    neighbours = read_cluster(environment(cluster, "worker", 0)).neighbours
    assert tensorflow_environment(variables, neighbours, legacy_keras, cpus) == expected


@pytest.mark.parametrize(
    ("limit", "expected"), [("150000 100000", 2), ("50000 100000", 1), ("max 100000", 64), (None, 64)]
)
def test_processors_follow_the_limit_of_the_container(tmp_path, monkeypatch, limit, expected):
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    if limit:
        (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert processors(tmp_path / "cpu.max") == expected


RANK = {"RANK": "3", "SIZE": "4", "LOCAL_SIZE": "2"}
JOB = JobDescription("job", {}, {}, "", "", "", "", "", "chief-0", ("master-0", "worker-0"))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"KFP_DISTRIBUTED_REPLICA": "ps-3", **environment(LOCAL, "worker", 1)}, "ps-3"),
        (environment(LOCAL, "worker", 1), "worker-1"),
        ({"RANK": "1"}, "worker-0"),
        ({}, "chief-0"),
    ],
)
def test_name_of_a_replica(variables, expected):
    assert replica_name(variables, read_cluster(variables), JOB) == expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2"}, None),
        ({f"OMPI_COMM_WORLD_{name}": value for name, value in RANK.items()}, Rank(3, 4, 2)),
        ({f"HOROVOD_{name}": value for name, value in RANK.items()}, Rank(3, 4, 2)),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}, Rank(3, 4, 2)),
    ],
)
def test_read_rank(variables, expected):
    assert read_rank(variables) == expected


def test_horovod_must_see_all_ranks():
    ranks = {f"OMPI_COMM_WORLD_{name}": value for name, value in RANK.items()}
    check_size(ranks, 4)
    check_size({}, 1)
    with pytest.raises(RuntimeError, match="Horovod sees 1 of 4 ranks"):
        check_size(ranks, 1)


@pytest.mark.parametrize(("rank", "expected"), [(0, "worker-0"), (1, "worker-0"), (2, "worker-1"), (3, "worker-1")])
def test_ranks_have_the_name_of_their_worker(rank, expected):
    job = replace(JOB, leader="launcher-0", data_replicas=("worker-0", "worker-1"))
    assert replica_name({"KFP_DISTRIBUTED_REPLICA": "launcher-0"}, Cluster(), job, Rank(rank, 4, 2)) == expected


@pytest.mark.parametrize(
    ("variables", "rank", "expected"),
    [
        ({"RANK": "0"}, None, "master-0"),
        # An elastic job may have more workers than its description.
        ({"RANK": "4"}, None, "worker-3"),
        # torchrun may number the ranks in another order than their replicas.
        (
            {"RANK": "0", "TORCHELASTIC_RUN_ID": "none", "KFP_DISTRIBUTED_REPLICA": "worker-1"},
            Rank(0, 3, 1),
            "worker-1",
        ),
    ],
)
def test_name_of_a_pytorch_replica(variables, rank, expected):
    job = replace(JOB, leader="master-0", data_replicas=("master-0", "worker-0", "worker-1"))
    assert replica_name(variables, Cluster(), job, rank) == expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"PET_NPROC_PER_NODE": "1", "PET_NNODES": "3"}, False),
        ({"PET_NPROC_PER_NODE": "2"}, True),
        ({"PET_NPROC_PER_NODE": "1", "PET_RDZV_BACKEND": "c10d"}, True),
        ({"PET_NPROC_PER_NODE": "2", "TORCHELASTIC_RUN_ID": "none"}, False),
    ],
)
def test_replicas_that_start_ranks(variables, expected):
    assert has_ranks(variables) is expected
