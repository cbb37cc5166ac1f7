"""What the keys of the dict, the cluster and the task change in a manifest."""

import json
from dataclasses import replace

import pytest
from train.test_manifests import (
    LABELS,
    SECRET,
    SECURITY,
    SETTINGS,
    TEMPLATE,
    job,
    limits,
    pod_of,
    spec_of,
    with_settings,
)

from kfp_distributed.components.train.manifests import job_manifest, volume_claims
from kfp_distributed.library.packages import install_command


def container_of(settings=SETTINGS, **keys):
    return pod_of(settings, **keys)["containers"][0]


def test_labels_that_are_empty_are_left_out():
    made = job_manifest(replace(job(), labels={"run": "", "task": "fit"}), SETTINGS)
    assert made["metadata"]["labels"].keys() == LABELS.keys() - {"kfp-distributed/run"}


def test_the_queue_is_a_label_of_the_job_alone():
    made, without = (job_manifest(job("TF", **keys), SETTINGS) for keys in ({"queue_name": "team"}, {}))
    assert made["metadata"]["labels"].pop("kueue.x-k8s.io/queue-name") == "team"
    assert made == without
    assert "suspend" not in json.dumps(made)


@pytest.mark.parametrize(
    ("distribution_type", "mpi_version", "keys", "together"),
    [
        ("TF", None, {"number_of_workers": 3, "evaluator": True}, 8),
        ("TF", None, {"number_of_workers": 3, "number_of_parameter_servers": 0}, 3),
        ("PyTorch", None, {"number_of_workers": 3}, 4),
        ("PyTorch", None, {"number_of_workers": 3, "min_workers": 1}, 2),
        ("MPI", "v1", {"number_of_workers": 3}, 4),
        # The launcher is made when the workers run: a group that has to be whole before they do is without it.
        ("MPI", "v2beta1", {"number_of_workers": 3}, 3),
    ],
)
def test_a_gang_is_all_that_has_to_start_together(distribution_type, mpi_version, keys, together):
    settings = replace(SETTINGS, mpi_version=mpi_version)
    made, without = (spec_of(distribution_type, settings, gang_scheduling=on, **keys) for on in (True, False))
    assert made["runPolicy"].pop("schedulingPolicy") == {"minAvailable": together}
    assert made == without


def test_a_gang_waits_in_the_jobs_queue_and_suspends_nothing():
    keys = {"queue_name": "team", "priority_class": "high"}
    made, without = (job_manifest(job("TF", gang_scheduling=on, **keys), SETTINGS) for on in (True, False))
    group = {"minAvailable": 5, "queue": "team", "priorityClass": "high"}
    assert made["spec"]["runPolicy"].pop("schedulingPolicy") == group
    assert without["spec"]["runPolicy"].pop("schedulingPolicy") == {"priorityClass": "high"}
    assert made["spec"] == without["spec"]
    assert made["metadata"]["labels"] == {**LABELS, "kueue.x-k8s.io/queue-name": "team"}
    assert "suspend" not in json.dumps(made)


def test_another_scheduler_is_named_by_each_pod():
    assert pod_of(scheduler_name="packing")["schedulerName"] == "packing"
    roles = spec_of("TF", scheduler_name="packing", evaluator=True)["tfReplicaSpecs"].values()
    assert [each["template"]["spec"]["schedulerName"] for each in roles] == ["packing"] * 4


def test_the_priority_is_of_the_pods_and_of_their_group():
    made = spec_of("TF", priority_class="high")
    assert made["runPolicy"]["schedulingPolicy"] == {"priorityClass": "high"}
    assert {each["template"]["spec"]["priorityClassName"] for each in made["tfReplicaSpecs"].values()} == {"high"}
    assert pod_of(priority_class="high")["priorityClassName"] == "high"


def test_restarts():
    assert spec_of("Job", restart_limit=0)["backoffLimit"] == 0
    never = spec_of("TF", restart_limit=0)
    assert never["runPolicy"]["backoffLimit"] == 5
    assert {each["restartPolicy"] for each in never["tfReplicaSpecs"].values()} == {"Never"}
    for version in ("v1", "v2beta1"):
        never = spec_of("MPI", replace(SETTINGS, mpi_version=version), restart_limit=0)
        assert {each["restartPolicy"] for each in never["mpiReplicaSpecs"].values()} == {"Never"}


@pytest.mark.parametrize(
    ("keys", "deadline"),
    [
        ({}, None),
        ({"total_timeout": "1h"}, 4200),
        ({"total_timeout": "1h", "launcher_lost_timeout": 150}, 3750),
        ({"total_timeout": 0.1, "launcher_lost_timeout": "unlimited"}, 600),
    ],
)
def test_the_deadline_is_later_than_the_steps_own(keys, deadline):
    assert spec_of("Job", **keys).get("activeDeadlineSeconds") == deadline
    assert spec_of("TF", **keys)["runPolicy"].get("activeDeadlineSeconds") == deadline


def test_a_job_that_is_to_be_kept_stays():
    assert "ttlSecondsAfterFinished" not in spec_of("Job", keep_job=True)
    assert "ttlSecondsAfterFinished" not in spec_of("PyTorch", keep_job=True)["runPolicy"]


def test_packages_are_installed_before_the_replica_starts():
    proxy = {"name": "PIP_INDEX_URL", "value": "https://index.example.com/simple"}
    packages = (("numpy>=1.26,<3", "a; python_version<'3.13'"), ("tf_keras",))
    settings = replace(
        with_settings(env=(proxy, {"name": "PYTHONPATH", "value": "/mine"})),
        packages=packages[0],
        packages_alone=packages[1],
    )
    made = pod_of(settings, worker_cpus=2)
    assert made["initContainers"] == [
        {
            "name": "packages",
            "image": "python:3.11",
            "command": install_command(*packages, folder="/kfp-distributed/packages"),
            "env": [
                {"name": "HOME", "value": "/kfp-distributed/work"},
                {"name": "PIP_CACHE_DIR", "value": "/tmp/pip"},
                proxy,
                {"name": "PYTHONPATH", "value": "/kfp-distributed/code/library.zip"},
            ],
            "resources": limits(cpu="2"),
            "volumeMounts": [
                {"name": "kfp-distributed-code", "mountPath": "/kfp-distributed/code"},
                {"name": "kfp-distributed-packages", "mountPath": "/kfp-distributed/packages"},
                {"name": "kfp-distributed-work", "mountPath": "/kfp-distributed/work"},
            ],
            "securityContext": SECURITY,
        }
    ]
    main = made["containers"][0]
    import_path = "/kfp-distributed/code/library.zip:/kfp-distributed/packages:/mine"
    assert {"name": "PYTHONPATH", "value": import_path} in main["env"]
    assert {"name": "kfp-distributed-packages", "mountPath": "/kfp-distributed/packages"} in main["volumeMounts"]
    assert {"name": "kfp-distributed-packages", "emptyDir": {}} in made["volumes"]


def test_packages_alone_are_enough_for_an_installation():
    (container,) = pod_of(replace(SETTINGS, packages_alone=("tf_keras",)))["initContainers"]
    assert container["command"][-3:] == ["--folder=/kfp-distributed/packages", "--alone=tf_keras", "--"]


def test_the_environment_is_ours_then_the_clusters_then_the_tasks_and_the_last_counts_but_for_what_the_entry_needs():
    replaced = {"name": "AWS_SECRET_ACCESS_KEY", "value": "$(OTHER)"}
    needed = {"name": "KFP_DISTRIBUTED_JOB", "value": "mine"}
    made = container_of(with_settings(env=({"name": "OTHER", "value": "1"}, needed, replaced)))
    assert made["env"] == [*TEMPLATE["spec"]["containers"][0]["env"][:-1], {"name": "OTHER", "value": "1"}, replaced]


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"value": "/mine"}, "/kfp-distributed/code/library.zip:/mine"),
        ({"valueFrom": {"secretKeyRef": {}}}, "/kfp-distributed/code/library.zip"),
    ],
)
def test_our_part_of_the_import_path_stays(given, value):
    env = container_of(with_settings(env=({"name": "PYTHONPATH", **given},)))["env"]
    assert [each for each in env if each["name"] == "PYTHONPATH"] == [{"name": "PYTHONPATH", "value": value}]


def test_the_environment_of_the_step_is_not_the_pods():
    made = replace(job(), environment={"PYTHONPATH": "/here"})
    assert "/here" not in json.dumps(job_manifest(made, SETTINGS))


@pytest.mark.parametrize(
    ("keys", "task", "resources"),
    [
        ({}, {}, None),
        ({"worker_gpus": 2, "gpu_resource": "amd.com/gpu"}, {}, limits(**{"amd.com/gpu": "2"})),
        ({}, {"limits": {"cpu": "500m"}}, {"limits": {"cpu": "500m"}}),
        (
            {"worker_cpus": 2},
            {"limits": {"cpu": "500m", "memory": "1Gi"}, "requests": {"memory": "512Mi"}},
            {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "2", "memory": "512Mi"}},
        ),
    ],
)
def test_resources_of_the_dict_count_before_the_tasks(keys, task, resources):
    assert container_of(with_settings(resources=task), **keys).get("resources") == resources


def test_resources_of_the_task_are_for_those_who_train():
    settings = with_settings(resources={"limits": {"nvidia.com/gpu": "1"}})

    def which(specs):
        return {role for role, each in specs.items() if "resources" in each["template"]["spec"]["containers"][0]}

    assert which(spec_of("TF", settings, evaluator=True)["tfReplicaSpecs"]) == {"Worker", "Evaluator"}
    assert which(spec_of("PyTorch", settings)["pytorchReplicaSpecs"]) == {"Master", "Worker"}
    assert which(spec_of("MPI", replace(settings, mpi_version="v1"))["mpiReplicaSpecs"]) == {"Worker"}


def test_the_dict_chooses_nodes_before_the_task():
    task = {"node_selector": {"disk": "ssd"}, "tolerations": ({"operator": "Exists"},), "affinity": {"podAffinity": {}}}
    made = pod_of(with_settings(**task))
    assert made["nodeSelector"] == {"disk": "ssd"}
    assert made["tolerations"] == [{"operator": "Exists"}]
    assert made["affinity"] == {"podAffinity": {}}
    own = pod_of(
        with_settings(**task), node_selector={"pool": "gpu"}, tolerations=[{"key": "gpu", "operator": "Exists"}]
    )
    assert own["nodeSelector"] == {"pool": "gpu"}
    assert own["tolerations"] == [{"key": "gpu", "operator": "Exists"}]


def test_volumes_of_the_task_and_shared_memory():
    volume, mount = {"name": "data", "emptyDir": {}}, {"name": "data", "mountPath": "/data"}
    made = pod_of(with_settings(volumes=(volume,), volume_mounts=(mount,)), shared_memory="2Gi")
    before = TEMPLATE["spec"]
    memory = {"name": "kfp-distributed-shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}
    assert made["volumes"] == [*before["volumes"], memory, volume]
    assert made["containers"][0]["volumeMounts"] == [
        *before["containers"][0]["volumeMounts"],
        {"name": "kfp-distributed-shared-memory", "mountPath": "/dev/shm"},
        mount,
    ]


VOLUMES = [
    {"name": "data", "path": "/data", "read_only": True},
    {"name": "scratch", "path": "/scratch", "size": "10Gi"},
    {"name": "fast", "path": "/fast", "size": "1Gi", "access_mode": "ReadWriteOnce", "storage_class": "ssd"},
]


def test_claims_are_mounted_by_every_replica():
    expected = [
        ({"claimName": "data", "readOnly": True}, "/data"),
        ({"claimName": "scratch", "readOnly": False}, "/scratch"),
        ({"claimName": "fast", "readOnly": False}, "/fast"),
    ]
    pods = [each["template"]["spec"] for each in spec_of("TF", volumes=VOLUMES)["tfReplicaSpecs"].values()]
    assert len(pods) == 3
    for made in [pod_of(volumes=VOLUMES), *pods]:
        claims = {each["name"]: each["persistentVolumeClaim"] for each in made["volumes"][2:]}
        mounts = made["containers"][0]["volumeMounts"][2:]
        assert [(claims[each["name"]], each["mountPath"]) for each in mounts] == expected


@pytest.mark.parametrize(("distribution_type", "mode"), [("Job", "ReadWriteOnce"), ("TF", "ReadWriteMany")])
def test_a_claim_with_a_size_is_made_for_as_many_as_mount_it(distribution_type, mode):
    def claim(name, mode, size, storage_class):
        about = {"name": name, "namespace": "training", "labels": {"app.kubernetes.io/managed-by": "kfp-distributed"}}
        spec = {"accessModes": [mode], "resources": {"requests": {"storage": size}}, "storageClassName": storage_class}
        return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": about, "spec": spec}

    # Nobody owns one, whoever owns the job: it stays, with what is in it.
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "step", "uid": "1234"}
    assert volume_claims(job(distribution_type, volumes=VOLUMES), replace(SETTINGS, owner=owner)) == [
        claim("scratch", mode, "10Gi", None),
        claim("fast", "ReadWriteOnce", "1Gi", "ssd"),
    ]


@pytest.mark.parametrize("version", ["v1", "v2beta1"])
def test_credentials_of_mpi_are_named_on_the_command_line_and_never_shown(version):
    key = {"name": "AWS_ACCESS_KEY_ID", "value": "shown-nowhere-else"}
    settings = replace(SETTINGS, environment=(SECRET, key), mpi_version=version)
    launcher = spec_of("MPI", settings)["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    command = launcher["command"]
    assert command[command.index("AWS_ACCESS_KEY_ID") - 1] == "-x"
    assert not any("shown-nowhere-else" in word for word in command)
