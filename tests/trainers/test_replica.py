"""What a process is in its job."""

import pytest

from kfp_distributed.trainers.program import Program
from kfp_distributed.trainers.runtime.cluster import Cluster, Rank
from kfp_distributed.trainers.runtime.job_description import JobDescription
from kfp_distributed.trainers.runtime.replica import ThisReplica

WORKERS = ("worker-0", "worker-1", "worker-2")
RANK = Rank(2, 3, 1)


def trainer(name: str) -> Program:
    return Program("trainer", name)


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
