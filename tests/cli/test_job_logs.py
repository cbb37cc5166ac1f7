"""Logs of containers that were restarted in place."""

import pytest
from namespace_api import NamespaceApi

from kfp_distributed.cli.jobs.cluster_jobs import ClusterJob
from kfp_distributed.cli.jobs.job_logs import read_logs
from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.train.describe.manifests import job_kind

JOB = ClusterJob(job_kind("Job"), {"metadata": {"name": "a-job", "namespace": "team"}, "spec": {}})


class LogApi(NamespaceApi):
    """Serves the logs of starts, as the kubelet does: the current one and the one before it."""

    def __init__(self, starts):
        super().__init__()
        self._starts = starts
        for name, logs in starts.items():
            status = {"name": "training", "restartCount": len(logs) - 1, "state": {"running": {}}}
            labels = {
                "kfp-distributed/job": "a-job",
                "training.kubeflow.org/replica-type": "worker",
                "training.kubeflow.org/replica-index": name[-1],
            }
            metadata = {"name": name, "labels": labels}
            self.add({"kind": "Pod", "metadata": metadata, "status": {"containerStatuses": [status]}})

    def lines(self, path, query, idle_seconds):
        logs = self._starts[path.split("/")[-2]]
        is_previous = query.get("previous") == "true"
        log = logs[-2 if is_previous else -1]
        if log is None:
            raise ClusterError(400, "previous terminated container not found")
        return iter(f"2026-11-23T14:05:{second:02}.0Z {text}" if second else text for second, text in log)


def read(starts, replica=""):
    return [
        (int(entry.time) % 60, entry.level, entry.replica, entry.message)
        for entry in read_logs(LogApi(starts), JOB, replica)
    ]


RESTARTED = {
    "w-0": [[(1, "lost")], [(3, "second"), (7, "failed")], [(8, "third")]],
    "w-1": [[(2, "begins"), (9, "ends")]],
}
MARK = "--- restart 2 of the container; only the start before it is kept ---"


@pytest.mark.parametrize("replica", ["", "worker-0"])
def test_the_previous_start_comes_before_a_mark_and_the_current_one(replica):
    expected = [
        (2, "INFO", "worker-1", "begins"),
        (3, "INFO", "worker-0", "second"),
        (7, "INFO", "worker-0", "failed"),
        (8, "WARNING", "worker-0", MARK),
        (8, "INFO", "worker-0", "third"),
        (9, "INFO", "worker-1", "ends"),
    ]
    assert read(RESTARTED, replica) == [line for line in expected if replica in ("", line[2])]


@pytest.mark.parametrize(
    ("previous", "current", "expected"),
    [
        (None, [(8, "second")], [(8, "WARNING", "worker-0", MARK), (8, "INFO", "worker-0", "second")]),
        ([(3, "first")], [], [(3, "INFO", "worker-0", "first"), (3, "WARNING", "worker-0", MARK)]),
        (None, [], []),
        (
            [(None, "unable to retrieve")],
            [(8, "second")],
            [(8, "WARNING", "worker-0", MARK), (8, "INFO", "worker-0", "second")],
        ),
    ],
)
def test_a_start_without_lines(previous, current, expected):
    assert read({"w-0": [[], previous, current]}) == expected
