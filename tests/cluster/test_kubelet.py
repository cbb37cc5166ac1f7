"""Replicas that the kubelet ends because they exceed their limits of memory or disk."""

import re

import pytest
from cluster.jobs import left_behind
from cluster.test_failures import TF, failed
from cluster.test_launch import function
from step_lines import brief_lines

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PS_ALLOCATES = """\
import os, time
if os.environ["KFP_DISTRIBUTED_REPLICA"] == "ps-0":
    print("allocating", flush=True)
    print(len(bytearray(2 * 1024**3)))
time.sleep(300)"""


def test_a_parameter_server_out_of_memory_ends_the_job(start):
    distribution = {"number_of_workers": 1, "number_of_parameter_servers": 1, "ps_memory": "400Mi", "restart_limit": 1}
    step = start({"command": ["python3", "-c", PS_ALLOCATES]}, {**TF, **distribution})
    causes = ("ps-0 failed with exit code 137", "OOMKilled", "restart_limit=1")
    cause = failed(step, *causes, since=r"\] allocating")
    # No other replica is named.
    assert set(brief_lines(cause)[:-1]) == {"[ps-0] allocating"}
    assert "Then failed" not in cause


EVICTED = "Evicted: Pod ephemeral local storage usage exceeds the total limit of containers 50Mi"

WRITES = """\
import json, os, time
from pathlib import Path
begun = Path(os.environ["KFP_DISTRIBUTED_CHECKPOINT_DIR"], "begun")
print("starts again" if begun.exists() else "starts", flush=True)
if not begun.exists() and json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
    begun.write_text("")
    time.sleep(5)
    print("writing", flush=True)
    Path("large").write_bytes(bytes(200 * 1024**2))
    time.sleep(600)"""


@pytest.fixture
def small_disk(open_namespace, api):
    """A namespace with a limit of 50 MiB of ephemeral storage for each container."""
    limit = {"type": "Container", "default": {"ephemeral-storage": "50Mi"}}
    api.create_namespaced_limit_range(open_namespace, {"metadata": {"name": "disk"}, "spec": {"limits": [limit]}})
    return open_namespace


@pytest.mark.takes(65)
def test_a_worker_that_the_kubelet_evicts_restarts_from_its_checkpoint(start, small_disk):
    """With restart_limit 0 the eviction ends the job.

    Both cases run at the same time, because a kubelet measures the volumes of a pod every one to two minutes.
    """
    last, first = (start(function(WRITES), {**TF, "restart_limit": limit}, namespace=small_disk) for limit in (0, 1))
    evicted = last.wait_for(f"worker-0: failed .*{EVICTED}", 300)
    cause = failed(last, f"{EVICTED}., ")
    # The kubelet may report the eviction before the container has ended.
    assert re.search(r"^worker-0 failed(: | with (exit code 143 \(SIGTERM\), )?)Evicted", cause, re.MULTILINE)
    assert last.lines[-1][0] - evicted < 10
    assert brief_lines(cause)[:-1] == ["[worker-0] starts", "[worker-0] writing"]
    verdict = first.verdict()
    assert verdict["succeeded"], first.log
    assert EVICTED in first.log
    assert "[worker-0] starts again" in first.log
    assert left_behind(first) == []
