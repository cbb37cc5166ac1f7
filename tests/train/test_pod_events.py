"""Which pods are asked for their events, and when."""

import pytest

from kfp_distributed.components.train.run.runners.kubernetes.watch.pod_events import PodEvents

PENDING = {"phase": "Pending"}
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
NODE_LOST = {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}
PULL_FAILS = {
    "phase": "Pending",
    "containerStatuses": [{"name": "tensorflow", "state": {"waiting": {"reason": "ImagePullBackOff"}}}],
}
FAILED = {"phase": "Failed", "reason": "Evicted"}
SUCCEEDED = {"phase": "Succeeded"}


def pod(uid, status):
    return {"metadata": {"name": f"a-job-{uid}", "uid": uid}, "spec": {"nodeName": "a"}, "status": status}


def asked(events, times):
    """Return the UIDs that are asked, with their times, if there is one request at each time."""
    queries = [(now, query["fieldSelector"]) for now in times if (query := events.next_query(now))]
    assert all(query.startswith("type=Warning,involvedObject.uid=") for _, query in queries)
    return [(now, query.rpartition("=")[2]) for now, query in queries]


def follow(*changes, times=range(1000)):
    """Return when a pod is asked after changes of its status, which are (time, status), with None for its deletion."""
    events, requests, pending = PodEvents(), [], list(changes)
    for now in times:
        while pending and pending[0][0] <= now:
            status = pending.pop(0)[1]
            events.update(pod("a", status or PENDING), deleted=status is None, now=now)
        requests += [time for time, _ in asked(events, [now])]
    return requests


@pytest.mark.parametrize(
    ("changes", "times"),
    [
        ([(0, PENDING)], [5, 10, 20, 40, 80, 160, 320, 620, 920]),
        ([(0, PENDING), (7, PENDING)], [5, 10, 20, 40, 80, 160, 320, 620, 920]),
        ([(0, PULL_FAILS)], []),
        ([(0, PENDING), (11, PULL_FAILS), (30, PENDING)], [5, 10, 35, 40, 50, 70, 110, 190, 350, 650, 950]),
        ([(0, PENDING), (4, READY)], []),
        ([(0, PENDING), (11, READY)], [5, 10]),
        ([(0, READY), (50, NODE_LOST), (61, None)], [55, 60]),
        ([(0, PENDING), (11, SUCCEEDED)], [5, 10]),
        ([(0, READY), (50, FAILED), (51, FAILED)], [50, 55]),
        ([(0, PENDING), (12, FAILED)], [5, 10, 12, 17]),
        ([(0, PENDING), (12, None)], [5, 10]),
    ],
)
def test_a_pod_is_asked_while_it_is_not_ready_and_twice_after_its_failure(changes, times):
    assert follow(*changes) == times


def test_a_job_sends_one_request_at_a_time_and_leaves_out_no_pod():
    events = PodEvents()
    events.update_all([pod(str(index), PENDING) for index in range(1000)], now=0)
    requests = asked(events, range(5, 1005))
    assert [uid for _, uid in requests] == [str(index) for index in range(1000)]
    events.update(pod("7", FAILED), deleted=False, now=1005)
    assert asked(events, [1005, 1006]) == [(1005, "7"), (1006, "0")]


def test_a_pod_without_a_node_is_asked_if_its_status_does_not_say_why():
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    for conditions, times in (([unschedulable], []), ([], [5, 10])):
        events = PodEvents()
        waiting = {**pod("a", {"phase": "Pending", "conditions": conditions}), "spec": {}}
        events.update(waiting, deleted=False, now=0)
        assert [time for time, _ in asked(events, range(20))] == times


def test_a_pod_that_is_missing_in_a_list_is_not_asked():
    events = PodEvents()
    events.update_all([pod("a", PENDING), pod("b", PENDING)], now=0)
    events.update_all([pod("b", PENDING), pod("c", PENDING)], now=3)
    assert asked(events, range(10)) == [(5, "b"), (8, "c")]
