"""How keys of `distribution_specification`, settings of the cluster and of the task change a TrainJob."""

import json
from dataclasses import replace

import pytest
from train.test_manifests import LABELS, OWNER, SETTINGS, job, with_settings
from train.test_trainjob_manifests import API_VERSION, job_specs_of, jobset_of, runtime_of, spec_of, train_job_of

from kfp_distributed.components.train.describe.manifests import HASH_ANNOTATION
from kfp_distributed.components.train.describe.manifests.train_job import (
    owned_by_train_job,
    train_job_manifest,
    training_runtime_manifest,
)

TYPES = pytest.mark.parametrize("distribution_type", ["TF", "PyTorch", "MPI"])


@TYPES
def test_a_deadline_ends_the_job_and_nothing_deletes_it(distribution_type):
    planned = job(distribution_type, total_timeout=3600)
    deadline, without = train_job_of(planned)["spec"], train_job_of(job(distribution_type))["spec"]
    assert deadline == {**without, "activeDeadlineSeconds": 4200}
    # A failed TrainJob starts over when its JobSet is deleted.
    assert "ttl" not in json.dumps([train_job_of(planned), runtime_of(planned)]).lower()


@TYPES
def test_with_a_deadline_a_store_that_never_answered_does_not_count(distribution_type):
    expected = json.dumps(jobset_of(distribution_type)).replace("code (140) ", "code (140|147) ")
    expected = expected.replace('"values": [140]', '"values": [140, 147]')
    assert jobset_of(distribution_type, total_timeout=3600) == json.loads(expected)


@TYPES
def test_without_restarts_any_failure_ends_the_job(distribution_type):
    keys = {"number_of_parameter_servers": 1, "evaluator": True} if distribution_type == "TF" else {}
    changed, expected = (jobset_of(distribution_type, restart_limit=limit, **keys) for limit in (0, 3))
    expected["failurePolicy"]["maxRestarts"] = 0
    for entry in expected["replicatedJobs"]:
        entry["template"]["spec"]["backoffLimit"] = 0
    assert changed == expected


@TYPES
def test_the_queue_is_a_label_of_the_train_job(distribution_type):
    queued, without = (job(distribution_type, **keys) for keys in ({"queue_name": "team"}, {}))
    manifest = train_job_of(queued)
    assert manifest["metadata"]["labels"].pop("kueue.x-k8s.io/queue-name") == "team"
    assert manifest == train_job_of(without)
    assert runtime_of(queued) == runtime_of(without)


@TYPES
def test_the_step_owns_both_objects_until_the_train_job_owns_its_runtime(distribution_type):
    planned = job(distribution_type)
    for manifest in (train_job_manifest, training_runtime_manifest):
        owned = manifest(planned, replace(SETTINGS, owner=OWNER))
        assert owned["metadata"].pop("ownerReferences") == [OWNER]
        assert owned == manifest(planned, SETTINGS)
    assert owned_by_train_job("5678", planned) == {
        "metadata": {
            "ownerReferences": [{"apiVersion": API_VERSION, "kind": "TrainJob", "name": "a-job", "uid": "5678"}]
        }
    }


@TYPES
def test_settings_of_nodes_and_of_the_scheduler_reach_all_pods(distribution_type):
    tolerations = [{"key": "gpu", "operator": "Exists"}]
    keys = {
        "node_selector": {"pool": "gpu"},
        "tolerations": tolerations,
        "priority_class": "high",
        "scheduler_name": "packing",
        "termination_grace_seconds": 90,
    }
    changed, expected = (jobset_of(distribution_type, **more) for more in (keys, {}))
    for entry in expected["replicatedJobs"]:
        pod = entry["template"]["spec"]["template"]["spec"]
        pod |= {"nodeSelector": {"pool": "gpu"}, "tolerations": tolerations, "terminationGracePeriodSeconds": 90}
        pod |= {"priorityClassName": "high", "schedulerName": "packing"}
        for variable in pod["containers"][0]["env"]:
            if variable["name"] == "KFP_DISTRIBUTED_GRACE_SECONDS":
                variable["value"] = "90"
    assert changed == expected


@TYPES
def test_volumes_and_shared_memory_reach_all_pods(distribution_type):
    volume = {"name": "corpus", "path": "/corpus", "read_only": True}
    changed, expected = (
        jobset_of(distribution_type, **keys) for keys in ({"volumes": [volume], "shared_memory": "1Gi"}, {})
    )
    claim = {"claimName": "corpus", "readOnly": True}
    sources = {
        "kfp-distributed-shared-memory": ("/dev/shm", {"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}),
        "kfp-distributed-volume-0": ("/corpus", {"persistentVolumeClaim": claim}),
    }
    for entry in expected["replicatedJobs"]:
        pod = entry["template"]["spec"]["template"]["spec"]
        for name, (path, source) in sources.items():
            pod["volumes"].append({"name": name, **source})
            pod["containers"][0]["volumeMounts"].append({"name": name, "mountPath": path})
    assert changed == expected


@TYPES
def test_the_task_and_its_packages_reach_all_pods(distribution_type):
    task = with_settings(
        env=({"name": "INDEX_URL", "value": "https://example.com"}, {"name": "RANK", "value": "7"}),
        volumes=({"name": "data", "emptyDir": {}},),
        volume_mounts=({"name": "data", "mountPath": "/data"},),
        affinity={"nodeAffinity": {}},
    )
    for spec in job_specs_of(distribution_type, replace(task, packages=("numpy",))).values():
        pod = spec["template"]["spec"]
        (container,), (installer,) = pod["containers"], pod["initContainers"]
        values = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert values["INDEX_URL"] == "https://example.com"
        assert values.get("RANK", "7") == (None if distribution_type == "PyTorch" else "7")
        assert len(values) == len(container["env"])
        assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]
        assert {"name": "data", "emptyDir": {}} in pod["volumes"]
        assert pod["affinity"] == {"nodeAffinity": {}}
        assert installer["name"] == "packages"
        permanent = [rule["onExitCodes"]["containerName"] for rule in spec["podFailurePolicy"]["rules"][2:]]
        assert permanent == ([] if distribution_type == "MPI" else ["packages", "node"])


def test_resources_of_the_task_apply_to_replicas_that_train():
    task = with_settings(resources={"limits": {"cpu": "3"}})
    expected = {"chief": None, "ps": None, "worker": {"limits": {"cpu": "3"}}}
    specs = job_specs_of("TF", task, number_of_parameter_servers=1)
    assert {
        name: spec["template"]["spec"]["containers"][0].get("resources") for name, spec in specs.items()
    } == expected


def test_the_store_of_the_job_is_read_from_its_secret():
    settings = replace(SETTINGS, object_store={"AWS_ACCESS_KEY_ID": "key"})
    reference = {"secretKeyRef": {"name": "a-job-object-store", "key": "AWS_ACCESS_KEY_ID"}}
    container = job_specs_of("PyTorch", settings)["node"]["template"]["spec"]["containers"][0]
    assert {"name": "AWS_ACCESS_KEY_ID", "valueFrom": reference} in container["env"]


@pytest.mark.parametrize(
    ("scheduler", "policy", "annotations"),
    [
        ("volcano", {"volcano": {}}, {"annotations": {"scheduling.volcano.sh/queue-name": "team"}}),
        ("scheduler-plugins-scheduler", {"coscheduling": {}}, {}),
    ],
)
def test_a_gang_is_that_of_the_named_scheduler(scheduler, policy, annotations):
    keys = {"scheduler_name": scheduler, "queue_name": "team"}
    gang, expected = (spec_of("TF", gang_scheduling=on, **keys) for on in (True, False))
    assert gang.pop("podGroupPolicy") == policy
    assert gang["template"].pop("metadata") == {"labels": LABELS, **annotations}
    del expected["template"]["metadata"]
    assert gang == expected


@pytest.mark.parametrize(
    ("distribution_type", "keys", "error"),
    [
        (
            "PyTorch",
            {"max_workers": 4},
            r"^max_workers = 4 is more than number_of_workers, 2: .*; set number_of_workers",
        ),
        ("MPI", {"min_workers": 1}, r"^min_workers = 1: .*MPIJob v1.*; remove min_workers and max_workers$"),
        ("TF", {"gang_scheduling": True}, r"^gang_scheduling = true: .*; set scheduler_name to \"volcano\""),
        (
            "MPI",
            {"gang_scheduling": True, "scheduler_name": "volcano"},
            r"^gang_scheduling = true: the launcher .*; remove gang_scheduling$",
        ),
        (
            "PyTorch",
            {"gang_scheduling": True, "scheduler_name": "volcano", "min_workers": 1},
            r"^gang_scheduling = true: .* all 3 replicas, but min_workers = 1 .*; remove gang_scheduling, or set min_w",
        ),
    ],
)
def test_what_trainer_cannot_do_is_refused_with_the_name_of_the_key(distribution_type, keys, error):
    for manifest in (training_runtime_manifest, train_job_manifest):
        with pytest.raises(ValueError, match=error):
            manifest(job(distribution_type, **keys), SETTINGS)


def _hash(planned, settings=SETTINGS):
    return train_job_manifest(planned, settings)["metadata"]["annotations"][HASH_ANNOTATION]


def test_the_hash_depends_on_both_objects_and_on_the_code():
    hashes = [
        _hash(job("PyTorch")),
        _hash(job("PyTorch", total_timeout=60)),
        _hash(job("PyTorch", node_selector={"pool": "gpu"})),
        _hash(job("PyTorch", program={"command": ["other"]})),
        _hash(job("PyTorch"), replace(SETTINGS, library={})),
    ]
    assert len(set(hashes)) == len(hashes)
    assert _hash(job("PyTorch"), replace(SETTINGS, owner=OWNER)) == hashes[0]
