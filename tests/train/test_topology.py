import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_distributed.components.train.describe.distributions import parse_distribution
from kfp_distributed.components.train.describe.topology import (
    Replica,
    Resources,
    Topology,
    plan_topology,
    replica_environment,
)

DEFAULT = Resources(None, None, 0, "nvidia.com/gpu")


def plan(distribution_type, **keys):
    return plan_topology(parse_distribution({"distribution_type": distribution_type, **keys}))


def replicas(role, count, resources=DEFAULT, serves=False):
    return tuple(Replica(role, index, resources, serves) for index in range(count))


def addresses(topology):
    return {replica.name: f"job-{replica.name}:{2222 + n}" for n, replica in enumerate(topology.replicas)}


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        (
            plan("Job", worker_cpus=4, worker_memory="8Gi", worker_gpus=2, gpu_resource="amd.com/gpu"),
            Topology(
                "Job",
                replicas("worker", 1, Resources("4", "8Gi", 2, "amd.com/gpu")),
                "worker-0",
                ("worker-0",),
                frozenset(),
            ),
        ),
        (
            plan("TF"),
            Topology(
                "TF",
                replicas("chief", 1) + replicas("ps", 2, serves=True) + replicas("worker", 2, serves=True),
                "chief-0",
                ("worker-0", "worker-1"),
                frozenset({"worker-0", "worker-1"}),
            ),
        ),
        (
            plan(
                "TF",
                number_of_workers=3,
                number_of_parameter_servers=1,
                evaluator=True,
                worker_cpus=4,
                worker_gpus=1,
                launcher_cpus=1,
                launcher_memory="1Gi",
                ps_memory="2Gi",
            ),
            Topology(
                "TF",
                replicas("chief", 1, Resources("1", "1Gi", 0, "nvidia.com/gpu"))
                + replicas("ps", 1, Resources("4", "2Gi", 0, "nvidia.com/gpu"), serves=True)
                + replicas("worker", 3, Resources("4", None, 1, "nvidia.com/gpu"), serves=True)
                + replicas("evaluator", 1, Resources("4", None, 1, "nvidia.com/gpu")),
                "chief-0",
                ("worker-0", "worker-1", "worker-2"),
                frozenset({"worker-0", "worker-1", "worker-2", "evaluator-0"}),
            ),
        ),
        (
            plan("TF", number_of_workers=3, number_of_parameter_servers=0, evaluator=True),
            Topology(
                "TF",
                replicas("worker", 3) + replicas("evaluator", 1),
                "worker-0",
                ("worker-0", "worker-1", "worker-2"),
                frozenset({"evaluator-0"}),
            ),
        ),
        (
            plan("MPI", worker_gpus=2, worker_memory="4Gi", launcher_cpus="500m"),
            Topology(
                "MPI",
                replicas("launcher", 1, Resources("500m", None, 0, "nvidia.com/gpu"))
                + replicas("worker", 2, Resources(None, "4Gi", 2, "nvidia.com/gpu"), serves=True),
                "launcher-0",
                ("worker-0", "worker-1"),
                frozenset(),
            ),
        ),
        (
            plan("PyTorch", number_of_workers=1, worker_gpus=2, worker_cpus=8, launcher_memory="4Gi"),
            Topology(
                "PyTorch",
                replicas("master", 1, Resources(None, "4Gi", 2, "nvidia.com/gpu"))
                + replicas("worker", 1, Resources("8", None, 2, "nvidia.com/gpu")),
                "master-0",
                ("master-0", "worker-0"),
                frozenset(),
            ),
        ),
    ],
    ids=["Job", "TF", "TF with everything", "TF all-reduce", "MPI", "PyTorch"],
)
def test_each_distribution_type_has_its_topology(topology, expected):
    assert topology == expected


def test_workers_of_an_elastic_pytorch_job_restart_alone_and_its_master_does_not():
    topology = plan("PyTorch", min_workers=1)
    assert topology.restart_alone == {"worker-0", "worker-1"}
    assert topology.spared == frozenset(), "restarts of a worker count"


def test_only_an_elastic_mpi_job_survives_the_loss_of_workers():
    assert plan("MPI", min_workers=1).spared == {"worker-0", "worker-1"}
    assert plan("MPI").spared == frozenset()


def tf_config(cluster, role, index):
    return {"cluster": cluster, "task": {"type": role, "index": index}, "environment": "cloud"}


SERVERS = {
    "chief": ["job-chief-0:2222"],
    "ps": ["job-ps-0:2223"],
    "worker": ["job-worker-0:2224", "job-worker-1:2225"],
    "evaluator": ["job-evaluator-0:2226"],
}
ALL_REDUCE = {"worker": ["job-worker-0:2222", "job-worker-1:2223"]}


@pytest.mark.parametrize(
    ("topology", "name", "expected"),
    [
        (plan("TF", number_of_parameter_servers=1, evaluator=True), "chief-0", tf_config(SERVERS, "chief", 0)),
        (plan("TF", number_of_parameter_servers=1, evaluator=True), "worker-1", tf_config(SERVERS, "worker", 1)),
        (
            plan("TF", number_of_parameter_servers=1, evaluator=True),
            "evaluator-0",
            tf_config(SERVERS, "evaluator", 0),
        ),
        (plan("TF", number_of_parameter_servers=0), "worker-1", tf_config(ALL_REDUCE, "worker", 1)),
    ],
)
def test_tf_config_is_that_of_the_operator(topology, name, expected):
    environment = replica_environment(topology, name, addresses(topology), parse_distribution())
    assert {**environment, "TF_CONFIG": json.loads(environment["TF_CONFIG"])} == {
        "KFP_DISTRIBUTED_REPLICA": name,
        "TF_CONFIG": expected,
    }


@pytest.mark.parametrize(
    ("topology", "name", "addresses", "keys", "expected"),
    [
        (plan("Job"), "worker-0", {}, {}, {}),
        (plan("MPI"), "worker-1", {}, {"slots_per_worker": 2}, {}),
        # training-operator sets no TF_CONFIG if the job has a single replica.
        (plan("TF", number_of_workers=1, number_of_parameter_servers=0), "worker-0", {}, {}, {}),
        (
            plan("PyTorch", number_of_workers=2),
            "worker-1",
            {"master-0": "job-master-0:23456"},
            {},
            {
                "MASTER_ADDR": "job-master-0",
                "MASTER_PORT": "23456",
                "WORLD_SIZE": "3",
                "RANK": "2",
                "PET_NPROC_PER_NODE": "1",
                "PET_NNODES": "3",
            },
        ),
        (
            plan("PyTorch", number_of_workers=1),
            "master-0",
            {"master-0": "[::1]:23456"},
            {"slots_per_worker": 4},
            {
                "MASTER_ADDR": "::1",
                "MASTER_PORT": "23456",
                "WORLD_SIZE": "8",
                "RANK": "0",
                "PET_NPROC_PER_NODE": "4",
                "PET_NNODES": "2",
            },
        ),
        (
            plan("PyTorch", number_of_workers=2),
            "worker-0",
            {"master-0": "job-master-0:23456"},
            {"min_workers": 1, "max_workers": 3, "number_of_workers": 2},
            {
                "MASTER_ADDR": "job-master-0",
                "MASTER_PORT": "23456",
                "WORLD_SIZE": "3",
                "RANK": "1",
                "PET_NPROC_PER_NODE": "1",
                "PET_NNODES": "2:4",
                "PET_RDZV_BACKEND": "c10d",
                "PET_RDZV_ENDPOINT": "job-master-0:23456",
                "PET_RDZV_CONF": "last_call_timeout=10,is_host=0",
                "PET_MAX_RESTARTS": "3",
            },
        ),
    ],
)
def test_each_other_type_has_its_environment(topology, name, addresses, keys, expected):
    if topology.distribution_type == "PyTorch":
        of_torchrun = {"MASTER_ADDR": "PET_MASTER_ADDR", "MASTER_PORT": "PET_MASTER_PORT", "RANK": "PET_NODE_RANK"}
        expected |= {copy: expected[name] for name, copy in of_torchrun.items()} | {"PYTHONUNBUFFERED": "1"}
    assert replica_environment(
        topology, name, addresses, parse_distribution({"distribution_type": topology.distribution_type, **keys})
    ) == {**expected, "KFP_DISTRIBUTED_REPLICA": name}


@pytest.mark.parametrize(
    ("topology", "name", "error"),
    [
        (plan("Job"), "chief-0", ValueError),
        (plan("PyTorch"), "worker-0", KeyError),
        (plan("TF", number_of_parameter_servers=0), "worker-0", KeyError),
    ],
)
def test_an_unknown_replica_or_a_missing_address_is_an_error(topology, name, error):
    with pytest.raises(error, match="-0'"):
        replica_environment(topology, name, {}, parse_distribution())


@settings(max_examples=100)
@given(st.sampled_from(["TF", "MPI", "PyTorch"]), st.integers(1, 60), st.integers(0, 30), st.booleans())
def test_every_replica_has_a_unique_name_and_environment(distribution_type, workers, servers, evaluator):
    tf_only = {"number_of_parameter_servers": servers, "evaluator": evaluator} if distribution_type == "TF" else {}
    topology = plan(distribution_type, number_of_workers=workers, **tf_only)
    names = [replica.name for replica in topology.replicas]
    roles = Counter(replica.role for replica in topology.replicas)

    assert len(set(names)) == len(names)
    assert roles["worker"] == workers
    assert (roles["ps"], roles["evaluator"]) == (
        tf_only.get("number_of_parameter_servers", 0),
        tf_only.get("evaluator", 0),
    )
    assert topology.leader == names[0]
    assert not topology.replicas[0].serves
    assert len(topology.data_replicas) == workers + roles["master"]
    assert topology.restart_alone < set(names)
    assert topology.leader not in topology.restart_alone
    environments = [
        replica_environment(topology, name, addresses(topology), parse_distribution())
        for name in names[:3] + names[-3:]
    ]
    assert len({tuple(environment.items()) for environment in environments}) == len(set(names[:3] + names[-3:]))
