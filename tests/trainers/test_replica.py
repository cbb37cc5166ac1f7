"""What a process is in its job."""

import pytest

from kfp_distributed.trainers.programs.program import Program
from kfp_distributed.trainers.runtime.job_description import JobDescription
from kfp_distributed.trainers.runtime.ranks.cluster import Cluster, Rank
from kfp_distributed.trainers.runtime.ranks.replica import ThisReplica

WORKERS = ("worker-0", "worker-1", "worker-2")
RANK = Rank(2, 3, 1)


def trainer(name: str) -> Program:
    return Program("trainer", name, rows="stream")


@pytest.mark.parametrize(
    ("program", "rank", "name", "elastic", "scored"),
    [
        (trainer("keras_classifier"), None, "worker-0", False, (0, 1)),
        (trainer("keras_classifier"), None, "worker-2", False, None),
        (trainer("keras_classifier"), None, "evaluator-0", False, (0, 1)),
        (trainer("keras_horovod"), Rank(0, 3, 1), "worker-0", False, (0, 1)),
        (trainer("keras_horovod"), RANK, "worker-2", False, None),
        (trainer("keras_horovod"), RANK, "worker-2", True, (0, 1)),
        (trainer("torch_classifier"), RANK, "worker-2", False, (2, 3)),
        (trainer("torch_classifier"), None, "worker-0", False, (0, 3)),
        (trainer("torch_horovod"), RANK, "worker-2", False, (2, 3)),
        (Program("function", "f", folders=("train_dir", "model_dir")), None, "worker-0", False, None),
        (Program("function", "f", folders=("train_dir", "validation_dir")), RANK, "worker-2", False, (0, 1)),
        (Program("command", "./train"), None, "worker-2", False, (0, 1)),
    ],
)
def test_validation_rows_that_a_process_downloads(program, rank, name, elastic, scored):
    """The ranks of PyTorch trainers score a part each; of Keras trainers one process scores all rows."""
    job = JobDescription("job", {}, {}, "data", "", "model", "", "", leader="worker-0", data_replicas=WORKERS)
    assert ThisReplica(job, program, Cluster(), rank, name, elastic).scores == scored


CLUSTER = Cluster({"worker": ["a:2222", "b:2222"]}, "worker", 1)


@pytest.mark.parametrize(
    ("kind", "name", "cluster", "servers", "leader"),
    [
        ("function", "worker-1", CLUSTER, 0, "a:2222"),
        ("function", "worker-0", CLUSTER, 0, ""),
        ("function", "evaluator-0", CLUSTER, 0, ""),
        ("function", "worker-1", CLUSTER, 1, ""),
        ("function", "worker-1", Cluster(), 0, ""),
        ("command", "worker-1", CLUSTER, 0, ""),
    ],
)
def test_peers_of_a_strategy_leave_with_its_leader(kind, name, cluster, servers, leader):
    job = JobDescription("job", {}, {}, "", "", "", "", "", "worker-0", WORKERS, servers)
    replica = ThisReplica(job, Program(kind, "fit", ()), cluster, None, name, False)
    assert replica.leader_to_leave_with == leader


@pytest.mark.parametrize(
    ("rank", "name", "rows", "part"),
    [
        (RANK, "worker-2", "download", (2, 3)),
        (RANK, "worker-2", "all", (0, 1)),
        (None, "worker-1", "all", (0, 1)),
        (None, "evaluator-0", "all", None),
    ],
)
def test_training_rows_that_a_process_downloads(rank, name, rows, part):
    job = JobDescription("job", {}, {}, "data", "", "model", "", "", leader="worker-0", data_replicas=WORKERS)
    program = Program("function", "fit", folders=("train_dir",), rows=rows)
    assert ThisReplica(job, program, Cluster(), rank, name, False).reads == part
