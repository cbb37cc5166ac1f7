"""The patches with the progress of a training, which the API server may refuse, delay or get too late."""

import json
import threading

import pytest
from kubernetes_api import KubernetesApi
from step_lines import brief_lines
from train.programs.jobs import make_job, wait_until, workers
from train.test_kubernetes_runner import JOB, SUCCEEDED, checked_runner

from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.job_objects import plan_objects
from kfp_distributed.components.train.run.facts import JobEnded, LogLine, ReplicaChanged, Tick
from kfp_distributed.components.train.run.runners.kubernetes import runner as runners
from kfp_distributed.components.train.run.runners.kubernetes.logs import last_lines
from kfp_distributed.components.train.run.runners.kubernetes.progress_patches import ProgressPatches

PATCH = f"PATCH {JOB}"
FIRST = {
    "kfp-distributed/epoch": "1/3",
    "kfp-distributed/percentage": "33",
    "kfp-distributed/metrics": '{"loss": 0.5}',
    "kfp-distributed/progress": "epoch 1/3 (33%), loss=0.5000",
}
SECOND = {
    "kfp-distributed/epoch": "2/3",
    "kfp-distributed/percentage": "66",
    "kfp-distributed/estimated-end": "1970-01-01T00:01:10Z",
    "kfp-distributed/metrics": '{"loss": 0.25}',
    "kfp-distributed/progress": "epoch 2/3 (66%), ends about 1970-01-01T00:01:10Z, loss=0.2500",
}
LAST = {
    "kfp-distributed/epoch": "3/3",
    "kfp-distributed/percentage": "100",
    "kfp-distributed/metrics": "{}",
    "kfp-distributed/progress": "succeeded, epoch 3/3 (100%)",
}


@pytest.fixture
def api(monkeypatch):
    monkeypatch.setattr(last_lines, "LAST_LINES_SECONDS", 0.1)
    monkeypatch.setattr(runners, "PATCH_SECONDS", 0.1)
    with KubernetesApi() as server:
        yield server


@pytest.fixture
def warnings():
    return []


@pytest.fixture
def patches(api, warnings):
    """Patches of an existing job."""
    objects = plan_objects(make_job((), workers(2)), ClusterSettings("default", image="image"))
    api.connect().call("POST", objects.jobs_path, objects.manifest)
    return ProgressPatches(api.connect(), objects, lambda *line: warnings.append(line))


def observe(patches, *facts):
    assert list(patches.observe(iter(facts))) == [*facts]


def shown(api):
    """Return the annotations of the job except for the one that all jobs have."""
    annotations = dict(api.objects[JOB]["metadata"]["annotations"])
    assert annotations.pop("kfp-distributed/spec-hash")
    return annotations


def uid(api):
    return api.objects[JOB]["metadata"]["uid"]


EPOCHS = [
    ReplicaChanged(1, "worker-0", "running"),
    LogLine(10, "worker-0", "epoch 1/3 loss=0.5000"),
    Tick(11),
    LogLine(40, "worker-0", "epoch 2/3 loss=0.2500"),
    Tick(41),
]


def test_a_patch_changes_only_these_annotations_and_only_if_there_is_news(api, patches):
    before = api.objects[JOB]
    observe(patches, Tick(0))
    patches.patch(uid(api))
    assert PATCH not in api.requests
    for facts, annotations in ((EPOCHS[:3], FIRST), (EPOCHS[3:], SECOND)):
        observe(patches, *facts)
        patches.patch(uid(api))
        assert shown(api) == annotations
    observe(patches, LogLine(42, "worker-0", "another line"), ReplicaChanged(42, "worker-1", "running"), Tick(43))
    patches.patch(uid(api))
    assert api.requests.count(PATCH) == 2
    observe(patches, LogLine(70, "worker-0", "epoch 3/3sample memory=5MiB"), Tick(71), JobEnded(72, True))
    patches.finish(uid(api))
    assert shown(api) == LAST
    after = json.loads(json.dumps(api.objects[JOB]))
    after["metadata"]["annotations"] = before["metadata"]["annotations"]
    after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
    assert after == before


def test_steps_are_shown_too(api, patches):
    for step in (20, 40):
        observe(patches, LogLine(step, "worker-0", f"step {step}/80 loss=0.5000"), Tick(step + 1))
        patches.patch(uid(api))
        assert (shown(api)["kfp-distributed/step"], api.requests.count(PATCH)) == (f"{step}/80", step // 20)


def test_another_job_and_a_deleted_one_are_not_changed_and_a_recreated_one_gets_all(api, patches, warnings):
    observe(patches, *EPOCHS)
    patches.patch("")
    patches.patch("uid of an earlier job")
    assert (shown(api), api.requests.count(PATCH)) == ({}, 1)
    first = api.delete(JOB)
    patches.patch(first["metadata"]["uid"])
    assert JOB not in api.objects
    del first["metadata"]["uid"]
    api.put(JOB, first)
    patches.patch(uid(api))
    assert shown(api) == SECOND
    assert warnings == []


def test_a_failing_api_server_is_warned_of_once_and_asked_again(api, patches, warnings):
    observe(patches, *EPOCHS)
    api.forbidden.add(PATCH)
    assert [patches.patch(uid(api)) for _ in range(2)] == [True, True]
    reason = f"{PATCH} is forbidden"
    text = f"cannot write the progress to the annotations of TFJob default/a-job, retrying: {reason}"
    assert (shown(api), warnings) == ({}, [("WARNING", text)])
    api.forbidden.clear()
    api.lose[PATCH] = "cut"
    patches.patch(uid(api))
    patches.patch(uid(api))
    assert (shown(api), len(warnings)) == (SECOND, 1)


def stamped(*lines):
    return "".join(f"2026-01-01T00:00:{second:02}.000000000Z {line}\n" for second, line in enumerate(lines))


def run_pod(api):
    labels = {"training.kubeflow.org/replica-type": "worker", "kfp-distributed/job": "a-job"}
    api.logs["a-job-worker-0"] = stamped("epoch 1/3 loss=0.5000")
    pod = {
        "metadata": {
            "name": "a-job-worker-0",
            "labels": labels,
            "ownerReferences": [{"kind": "TFJob", "uid": uid(api)}],
        },
        "spec": {"nodeName": "a", "restartPolicy": "Never"},
        "status": {"phase": "Running", "containerStatuses": [{"name": "tensorflow", "state": {"running": {}}}]},
    }
    return api.put("pods/a-job-worker-0", pod)


def follow(runner, until):
    """Read facts in this thread until a condition is true."""
    facts = runner.facts()
    assert any(isinstance(fact, Tick) and until() for fact in facts)
    return facts


def test_a_step_shows_the_progress_and_the_end_of_a_job_that_is_kept(api, capsys, monkeypatch):
    monkeypatch.setattr(last_lines, "LAST_LINES_SECONDS", 60.0)  # The end of the log is known here.
    runner, job = checked_runner(api, keep_job=True)
    runner.start(job)
    pod = run_pod(api)
    facts = follow(runner, lambda: shown(api) == FIRST)
    api.logs["a-job-worker-0"] = stamped("epoch 1/3 loss=0.5000", "epoch 3/3")
    pod["status"] = {
        "phase": "Succeeded",
        "containerStatuses": [{"name": "tensorflow", "state": {"terminated": {"exitCode": 0}}}],
    }
    api.put("pods/a-job-worker-0", pod)
    api.put(JOB, {**api.objects[JOB], **SUCCEEDED})
    assert list(facts)[-1].succeeded
    runner.stop()
    assert shown(api) == LAST
    assert brief_lines(capsys.readouterr().out)[-1].startswith("kept TFJob")


def test_a_step_whose_patch_gets_no_response_goes_on_and_its_cancel_deletes_the_job_first(api):
    is_patching, has_stopped = threading.Event(), threading.Event()

    def before(request):
        if request == PATCH:
            is_patching.set()
            assert has_stopped.wait(120)

    api.before = before
    runner, job = checked_runner(api)
    runner.start(job)
    run_pod(api)
    follow(runner, is_patching.is_set)
    count = len(api.requests)
    runner.stop()
    sent = [request for request in api.requests[count:] if not request.startswith(("GET", "WATCH", "LIST"))]
    assert sent[0] == f"DELETE {JOB}"
    assert PATCH not in api.requests
    has_stopped.set()
    assert wait_until(lambda: PATCH in api.requests)
    assert JOB not in api.objects
