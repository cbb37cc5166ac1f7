"""The Kubernetes runner and an API server that loses answers, with jobs that are there already, and cancelled."""

import json
import os
import re
import shutil
import signal
import time
from dataclasses import replace
from http import HTTPStatus

import pytest
from step_lines import brief_lines
from train.kubernetes_api import KubernetesApi
from train.programs.jobs import make_job, wait_until, workers

from kfp_distributed.components.train.job import JobEvent, Quiet
from kfp_distributed.components.train.launch import Request, TrainingFailed, job_name, launch, plan_job
from kfp_distributed.components.train.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.runners.kubernetes import heartbeat as beats
from kfp_distributed.components.train.runners.kubernetes import last_lines, tracker
from kfp_distributed.components.train.runners.kubernetes import runner as kubernetes
from kfp_distributed.components.train.runners.kubernetes.heartbeat import Heartbeat
from kfp_distributed.components.train.runners.kubernetes.runner import KubernetesRunner
from kfp_distributed.components.train.runners.protocol import ClusterError
from kfp_distributed.storage.errors import StorageError

pytestmark = pytest.mark.takes(35)

JOB, CODE = "tfjobs/a-job", "configmaps/a-job-code"
SECRET, CLAIM = "secrets/a-job-object-store", "persistentvolumeclaims/data"

FAILED, SUCCEEDED = (
    {"status": {"conditions": [{"type": each, "status": "True", "message": "so it is"}]}}
    for each in ("Failed", "Succeeded")
)


@pytest.fixture
def api(monkeypatch):
    # No pod runs here, so none tells of its end.
    monkeypatch.setattr(last_lines, "LAST_LINES_SECONDS", 0.1)
    with KubernetesApi() as server:
        yield server


def prepared(api, program=None, **distribution):
    """A runner that has checked a job of all parts."""
    volumes = [{"name": "data", "path": "/data", "size": "1Gi"}]
    runner = KubernetesRunner(
        api.connect(), ClusterSettings("default", object_store={"AWS_SECRET_ACCESS_KEY": "a key"})
    )
    job = make_job((), workers(2, volumes=volumes, **distribution), program=program)
    runner.check(job)
    return runner, job


def started(api, **changed):
    runner, job = prepared(api, **changed)
    runner.start(job)
    return runner


def state(api):
    """All objects, without what each server sets for itself; an owner by its place."""
    places = {each["metadata"]["uid"]: place for place, each in api.objects.items()}
    found = json.loads(json.dumps(api.objects))
    for each in found.values():
        about = each["metadata"]
        del about["uid"], about["resourceVersion"]
        about["ownerReferences"] = [places[owner["uid"]] for owner in about.get("ownerReferences", ())]
    return found


def owners(api):
    return {place: each["metadata"]["ownerReferences"] for place, each in state(api).items()}


CREATED = {JOB: [], CLAIM: [], CODE: [JOB], SECRET: [JOB]}
REQUESTS = [f"GET {CODE}", f"DELETE {SECRET}", *(f"POST {each}" for each in (CODE, SECRET, CLAIM, JOB))]


@pytest.mark.parametrize("fault", ["500", "cut"])
@pytest.mark.parametrize("request_", REQUESTS)
def test_an_answer_that_is_lost_while_a_job_is_created_changes_nothing(api, request_, fault):
    api.lose[request_] = fault
    runner = started(api)
    assert api.lose == {}
    assert owners(api) == CREATED
    with KubernetesApi() as undisturbed:
        started(undisturbed)
        assert state(api) == state(undisturbed)
    runner.stop()
    assert list(api.objects) == [CLAIM]


def owned_by(uid):
    return [{"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": "a-job", "uid": uid}]


@pytest.mark.parametrize("place", [CODE, SECRET])
def test_a_part_that_another_attempt_creates_at_the_same_time_is_ours_after_all(api, place):
    def create_too(request):
        if request == f"POST {place}" and request not in api.requests:
            about = {"name": place.partition("/")[2], "ownerReferences": owned_by(api.objects[JOB]["metadata"]["uid"])}
            api.put(place, {"metadata": about, "data": {"made": "by another attempt"}})

    api.before = create_too
    runner, job = prepared(api)
    runner.start(job)
    assert owners(api) == CREATED
    runner.stop()
    assert api.requests.count(f"POST {place}") == (2 if place == SECRET else 1)
    assert list(api.objects) == [CLAIM]


def test_the_code_of_an_earlier_job_is_removed_before_the_next_one_is_created(api):
    """Its pods would mount what is removed under them."""
    started(api)
    api.collects_after = 3
    api.delete(JOB)
    assert CODE in api.objects
    was_there = []
    api.before = lambda request: was_there.append(CODE in api.objects) if request == f"POST {JOB}" else None
    started(api)
    assert was_there == [False]
    assert owners(api) == CREATED


def test_code_that_comes_with_an_earlier_owner_meanwhile_is_waited_for(api):
    """As from another attempt of this step, whose job has gone since."""
    runner, job = prepared(api)

    def come(request):
        if request == f"POST {CODE}" and request not in api.requests:
            api.put(CODE, {"metadata": {"name": "a-job-code", "ownerReferences": owned_by("gone")}})
            api.before = lambda request: api.delete(CODE) if request == f"GET {CODE}" and CODE in api.objects else None

    api.before = come
    runner.start(job)
    assert owners(api) == CREATED


def test_code_that_is_nobodys_is_left_alone_and_named_before_the_job_is_created(api):
    api.put(CODE, {"metadata": {"name": "a-job-code"}, "data": {"not": "ours"}})
    runner, job = prepared(api)
    text = (
        "there is configmaps default/a-job-code of another owner; "
        "if nobody needs it: kubectl delete configmaps a-job-code -n default"
    )
    with pytest.raises(ClusterError, match=f"^{re.escape(text)}$"):
        runner.start(job)
    runner.stop()
    assert list(api.objects) == [CODE]
    assert f"POST {JOB}" not in api.requests


def test_the_step_neither_changes_nor_deletes_config_maps(api):
    runner = started(api, launcher_lost_timeout=60)
    next(fact for fact in runner.facts() if isinstance(fact, Quiet))
    runner.stop()
    assert not [each for each in api.requests if re.match(r"(PATCH|DELETE) configmaps/", each)]


@pytest.mark.parametrize("more", [{}, SUCCEEDED])
def test_a_step_that_is_started_again_goes_on_with_its_job(api, more):
    started(api)
    api.put(JOB, {**api.objects[JOB], **more})
    before = state(api)
    runner = started(api)
    assert state(api) == before
    assert api.requests.count(f"POST {JOB}") == 1
    first = next(runner.facts())
    assert (type(first), first.text) == (JobEvent, "TFJob default/a-job is there already: this step goes on with it")


def test_a_quota_that_the_jobs_own_objects_use_up_does_not_end_it(api):
    """As quotas are told before "already exists", for a dry run too."""
    started(api)
    api.full = "configmaps"
    del api.requests[:]
    runner = started(api)
    assert [each for each in api.requests if each.startswith("TRY")] == []
    assert owners(api) == CREATED
    runner.stop()


@pytest.fixture
def heartbeat(tmp_path):
    return tmp_path / "heartbeat"


def with_heartbeat(api, heartbeat, **changed):
    runner, job = prepared(api, **changed)
    runner.check(replace(job, description=replace(job.description, heartbeat_uri=str(heartbeat))))
    return runner, job


def test_the_heartbeat_begins_before_the_job_and_ends_with_the_step(api, heartbeat, monkeypatch):
    monkeypatch.setattr(kubernetes, "_SHORTEST_LOST_SECONDS", 1.0)
    monkeypatch.setattr(beats, "HEARTBEAT_SECONDS", 0.1)
    there = []
    api.before = lambda request: there.append(heartbeat.exists()) if request == f"POST {JOB}" else None
    runner, job = with_heartbeat(api, heartbeat, launcher_lost_timeout=8)
    runner.start(job)
    assert there == [True]
    first = int(heartbeat.read_text())
    assert abs(first - time.time()) < 60
    assert wait_until(lambda: int(heartbeat.read_text()) > first)
    # It is no matter of the API server's.
    api.refuses = HTTPStatus.UNAUTHORIZED
    second = int(heartbeat.read_text())
    assert wait_until(lambda: int(heartbeat.read_text()) > second)
    api.refuses = None
    runner.stop()
    assert not heartbeat.exists()
    assert list(api.objects) == [CLAIM]


def test_without_launcher_lost_timeout_there_is_no_heartbeat(api, heartbeat):
    runner, job = with_heartbeat(api, heartbeat, launcher_lost_timeout="unlimited")
    runner.start(job)
    assert not heartbeat.exists()
    runner.stop()


def test_a_heartbeat_that_the_store_does_not_take_is_refused_before_the_job_is_created(api, tmp_path):
    (tmp_path / "file").write_text("no folder")
    runner, job = with_heartbeat(api, tmp_path / "file" / "heartbeat")
    with pytest.raises(StorageError):
        runner.start(job)
    runner.stop()
    assert list(api.objects) == []


def test_a_heartbeat_that_cannot_be_written_for_a_while_is_said_once_and_ends_nothing(tmp_path):
    said, folder = [], tmp_path / "folder"
    beating = Heartbeat(str(folder / "heartbeat"), said.append)
    beating.begin()
    shutil.rmtree(folder)
    folder.write_text("in the way")
    assert [beating.beat() for _ in range(2)] == [False, False]
    assert [text.partition(":")[0] for text in said] == ["cannot write the heartbeat, and keeps trying"]
    folder.unlink()
    assert beating.beat()
    assert (folder / "heartbeat").exists()


def test_what_cannot_be_deleted_is_named_and_all_else_is_deleted(api, capsys):
    runner = started(api)
    api.refuses = HTTPStatus.FORBIDDEN
    runner.stop()
    said = "{} could not be deleted: Forbidden; to remove it: kubectl delete {} -n default"
    assert brief_lines(capsys.readouterr().out) == [
        said.format("/apis/kubeflow.org/v1/namespaces/default/tfjobs/a-job", "tfjobs a-job"),
        said.format("/api/v1/namespaces/default/secrets/a-job-object-store", "secrets a-job-object-store"),
    ]


def test_a_failed_job_of_an_earlier_start_goes_first(api):
    started(api)
    api.put(JOB, {**api.objects[JOB], **FAILED})
    failed, api.lingers = api.objects[JOB]["metadata"]["uid"], 2
    started(api)
    assert api.lingers == 0
    assert api.objects[JOB]["metadata"]["uid"] != failed
    assert owners(api) == CREATED


def test_a_job_of_another_specification_is_left_alone(api):
    started(api)
    before = state(api)
    runner, job = prepared(api, program={"command": ["another"]})
    text = (
        "there is a TFJob default/a-job with another specification; "
        "if nobody needs it: kubectl delete tfjobs a-job -n default"
    )
    with pytest.raises(ClusterError, match=f"^{re.escape(text)}$"):
        runner.start(job)
    runner.stop()
    assert state(api) == before


def test_a_job_of_another_specification_that_comes_while_ours_is_created_is_left_alone(api):
    other = {"metadata": {"name": "a-job", "annotations": {}}}

    def come(request):
        if request == f"POST {JOB}":
            api.put(JOB, other)

    runner, job = prepared(api)
    api.before = come
    with pytest.raises(ClusterError, match="with another specification"):
        runner.start(job)
    runner.stop()
    assert JOB in api.objects


KEPT = "the job is kept (keep_job); to remove it: kubectl delete tfjobs a-job -n default\n"
DELETED = "TFJob default/a-job is deleted\n"


@pytest.mark.parametrize(
    ("keep_job", "ended", "left", "said"),
    [
        (False, False, [CLAIM], DELETED),
        (True, False, [CLAIM], DELETED),
        (False, True, [CLAIM], ""),
        (True, True, sorted([CLAIM, CODE, JOB]), KEPT),
    ],
)
def test_what_a_job_leaves(api, capsys, keep_job, ended, left, said):
    runner = started(api, keep_job=keep_job)
    if ended:
        api.put(JOB, {**api.objects[JOB], **SUCCEEDED})
        assert list(runner.facts())[-1].succeeded
    told = len(api.requests)
    runner.stop()
    assert (sorted(api.objects), brief_lines(capsys.readouterr().out)) == (left, said.splitlines())
    # A cancel has time for one request.
    assert (keep_job and ended) or api.requests[told] == f"DELETE {JOB}"
    told = len(api.requests)
    runner.stop()
    assert api.requests[told:] == []


def test_a_job_that_is_gone_is_not_said_to_be_deleted(api, capsys):
    runner = started(api)
    api.delete(JOB)
    runner.stop()
    assert (list(api.objects), capsys.readouterr().out) == ([CLAIM], "")


def test_a_runner_that_has_begun_nothing_has_nothing_to_stop(api):
    KubernetesRunner(api.connect(), ClusterSettings("default")).stop()
    assert api.requests == []
    prepared(api)[0].stop()
    assert [each for each in api.requests if each.startswith("DELETE")] == []


@pytest.mark.parametrize("lingers", [0, 12])
def test_a_list_from_before_a_job_was_created_again_does_not_end_it(api, monkeypatch, lingers):
    """The watch lists between our DELETE of the failed job and the creation of the next one.

    That the job takes longer to go than its failure counts as recent is no matter.
    """
    monkeypatch.setattr(tracker, "RECENT_SECONDS", 2.0)
    runner = started(api)
    api.lingers = lingers
    lists = []

    def look(request):
        if request == f"POST {JOB}":
            before = api.requests.count("LIST tfjobs")
            api.expire("tfjobs")
            assert wait_until(lambda: api.requests.count("LIST tfjobs") > before)
            lists.append(before)

    api.before = look

    def fail():
        uid = api.objects[JOB]["metadata"]["uid"]
        labels = {"replica-type": "worker", "replica-index": "0"}
        about = {
            "name": "a-job-worker-0",
            "labels": {f"training.kubeflow.org/{key}": value for key, value in labels.items()},
            "ownerReferences": [{"kind": "TFJob", "uid": uid}],
        }
        api.put("pods/a-job-worker-0", {"metadata": about, "status": {"phase": "Failed"}})
        api.put(JOB, {**api.objects[JOB], **FAILED})

    facts = []
    for fact in runner.facts():
        if not facts:
            fail()
        facts.append(fact)
        if isinstance(fact, JobEvent) and fact.text.startswith("restart 1 of 3"):
            api.put(JOB, {**api.objects[JOB], **SUCCEEDED})
    runner.stop()
    assert (len(lists), facts[-1].succeeded, facts[-1].reason) == (1, True, "")


NAME = job_name("train", ("run", "train", "1"))


@pytest.fixture
def wanted(data, tmp_path):
    return Request(
        train_uri=data,
        model_uri=str(tmp_path / "model"),
        train_specification={"command": ["unused"]},
        identity=("run", "train", "1"),
        distribution_specification=workers(2),
    )


def run(api, request):
    launch(request, KubernetesRunner(api.connect(), ClusterSettings("default")), print)


def test_a_step_whose_reader_is_gone_deletes_its_job(api, wanted):
    """As where the process of a pipeline on a laptop was killed, whose training prints nothing."""
    output, (reader, writer) = os.dup(1), os.pipe()
    os.dup2(writer, 1)
    os.close(reader)
    try:
        with pytest.raises(TrainingFailed, match=r"^Nobody reads the output of this step any more\.$"):
            launch(wanted, KubernetesRunner(api.connect(), ClusterSettings("default")), lambda line: None)
    finally:
        os.dup2(output, 1)
        os.close(writer)
        os.close(output)
    assert f"POST tfjobs/{NAME}" in api.requests
    assert list(api.objects) == []


def leave(api, request, **about):
    """Does what an earlier start of the step did before it was killed."""
    runner, job = KubernetesRunner(api.connect(), ClusterSettings("default")), plan_job(request)
    runner.check(job)
    runner.start(job)
    found = api.objects[f"tfjobs/{NAME}"]
    api.put(f"tfjobs/{NAME}", {**found, "metadata": {**found["metadata"], **about}})
    del api.requests[:]
    runner._watcher.close()


MOMENTS = ["MAY create tfjobs", f"GET configmaps/{NAME}-code", "WATCH tfjobs"]
OTHER = {"annotations": {"kfp-distributed/spec-hash": "another"}}


def cancelled(api, request, moment, cancel):
    """Runs a step that is cancelled while it waits for an answer."""
    api.before = lambda request: cancel() if request == moment else None
    with pytest.raises(SystemExit) as end:
        run(api, request)
    assert end.value.code == 128 + signal.SIGTERM


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_step_that_is_started_again_and_cancelled_ends_its_job(api, wanted, cancel, capsys, moment):
    leave(api, wanted)
    cancelled(api, wanted, moment, cancel)
    assert api.objects == {}
    assert capsys.readouterr().out.endswith(f"TFJob default/{NAME} is deleted\n")


@pytest.mark.parametrize(
    "moment", [*MOMENTS, f"TRY tfjobs/{NAME}", f"POST configmaps/{NAME}-code", f"POST tfjobs/{NAME}"]
)
def test_a_step_that_is_cancelled_leaves_nothing(api, wanted, cancel, moment):
    cancelled(api, wanted, moment, cancel)
    assert api.objects == {}


@pytest.mark.parametrize("moment", MOMENTS[:1])
def test_a_cancelled_step_leaves_a_job_of_another_specification_alone(api, wanted, cancel, capsys, moment):
    leave(api, wanted, **OTHER)
    before = state(api)
    cancelled(api, wanted, moment, cancel)
    assert state(api) == before
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("about", "left"), [({}, []), (OTHER, [f"tfjobs/{NAME}"])])
def test_a_step_that_is_started_again_and_refused_ends_its_own_job_alone(api, wanted, about, left):
    leave(api, wanted, **about)
    api.denied.add("create configmaps")
    with pytest.raises(ValueError, match=r"^the account of this step may not, .* default: create configmaps;"):
        run(api, wanted)
    assert [each for each in api.objects if each.startswith("tfjobs/")] == left


def test_a_step_that_is_started_again_and_finds_no_store_ends_its_job(api, wanted, tmp_path):
    leave(api, wanted)
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "checkpoints").write_text("no folder")
    with pytest.raises(StorageError):
        run(api, wanted)
    assert api.objects == {}


def test_a_step_that_is_refused_at_its_first_start_deletes_nothing(api, wanted):
    api.denied |= {"get tfjobs", "create configmaps"}
    with pytest.raises(ValueError, match=r"default: get tfjobs\.kubeflow\.org, create configmaps;"):
        run(api, wanted)
    assert [each for each in api.requests if each.startswith("DELETE")] == []
