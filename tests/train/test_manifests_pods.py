"""How keys of `distribution_specification`, settings of the cluster and of the task change a manifest."""

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

from kfp_distributed.components.train.describe.manifests import job_manifest, volume_claims
from kfp_distributed.components.train.describe.manifests.job_objects import plan_objects
from kfp_distributed.library.packages import install_command


def container_of(settings=SETTINGS, **keys):
    return pod_of(settings, **keys)["containers"][0]


def test_empty_labels_are_left_out():
    manifest = job_manifest(replace(job(), labels={"run": "", "task": "fit"}), SETTINGS)
    assert manifest["metadata"]["labels"].keys() == LABELS.keys() - {"kfp-distributed/run"}


def test_queue_name_only_sets_a_label_of_the_job():
    manifest, without = (job_manifest(job("TF", **keys), SETTINGS) for keys in ({"queue_name": "team"}, {}))
    assert manifest["metadata"]["labels"].pop("kueue.x-k8s.io/queue-name") == "team"
    assert manifest == without
    assert "suspend" not in json.dumps(manifest)


@pytest.mark.parametrize("name", ["required", "preferred"])
@pytest.mark.parametrize(("distribution_type", "operator"), [("Job", "trainer"), ("MPI", "trainer"), ("TF", None)])
def test_kueue_places_the_pods_of_every_template_by_a_topology(name, distribution_type, operator):
    settings = replace(SETTINGS, operator=operator or "training-operator")
    level = "topology.kubernetes.io/zone"
    planned = job(distribution_type, queue_name="team", **{f"{name}_topology": level})
    objects = plan_objects(planned, settings)
    text = json.dumps([objects.manifest, objects.runtime])
    annotations = f'{{"sidecar.istio.io/inject": "false", "kueue.x-k8s.io/podset-{name}-topology": "{level}"}}'
    assert text.count(annotations) == text.count("sidecar.istio.io/inject") > 0


@pytest.mark.parametrize(
    ("distribution_type", "mpi_version", "keys", "minimum"),
    [
        ("TF", None, {"number_of_workers": 3, "evaluator": True}, 8),
        ("TF", None, {"number_of_workers": 3, "number_of_parameter_servers": 0}, 3),
        ("PyTorch", None, {"number_of_workers": 3}, 4),
        ("PyTorch", None, {"number_of_workers": 3, "min_workers": 1}, 2),
        ("MPI", "v1", {"number_of_workers": 3}, 4),
        # The launcher is created when the workers run, so their pod group does not include it.
        ("MPI", "v2beta1", {"number_of_workers": 3}, 3),
    ],
)
def test_a_gang_has_the_replicas_that_start_together(distribution_type, mpi_version, keys, minimum):
    settings = replace(SETTINGS, mpi_version=mpi_version)
    manifest, without = (spec_of(distribution_type, settings, gang_scheduling=on, **keys) for on in (True, False))
    assert manifest["runPolicy"].pop("schedulingPolicy") == {"minAvailable": minimum}
    assert manifest == without


def test_a_gang_uses_the_queue_of_the_job_and_is_not_suspended():
    keys = {"queue_name": "team", "priority_class": "high"}
    manifest, without = (job_manifest(job("TF", gang_scheduling=on, **keys), SETTINGS) for on in (True, False))
    group = {"minAvailable": 5, "queue": "team", "priorityClass": "high"}
    assert manifest["spec"]["runPolicy"].pop("schedulingPolicy") == group
    assert without["spec"]["runPolicy"].pop("schedulingPolicy") == {"priorityClass": "high"}
    assert manifest["spec"] == without["spec"]
    assert manifest["metadata"]["labels"] == {**LABELS, "kueue.x-k8s.io/queue-name": "team"}
    assert "suspend" not in json.dumps(manifest)


def test_scheduler_name_is_set_on_every_pod():
    assert pod_of(scheduler_name="packing")["schedulerName"] == "packing"
    roles = spec_of("TF", scheduler_name="packing", evaluator=True)["tfReplicaSpecs"].values()
    assert [role["template"]["spec"]["schedulerName"] for role in roles] == ["packing"] * 4


def test_priority_class_is_set_on_the_pods_and_on_their_group():
    manifest = spec_of("TF", priority_class="high")
    assert manifest["runPolicy"]["schedulingPolicy"] == {"priorityClass": "high"}
    assert {role["template"]["spec"]["priorityClassName"] for role in manifest["tfReplicaSpecs"].values()} == {"high"}
    assert pod_of(priority_class="high")["priorityClassName"] == "high"


def test_restart_limit_0_disables_restarts():
    assert spec_of("Job", restart_limit=0)["backoffLimit"] == 0
    never = spec_of("TF", restart_limit=0)
    assert never["runPolicy"]["backoffLimit"] == 5
    assert {role["restartPolicy"] for role in never["tfReplicaSpecs"].values()} == {"Never"}
    for version in ("v1", "v2beta1"):
        never = spec_of("MPI", replace(SETTINGS, mpi_version=version), restart_limit=0)
        assert {role["restartPolicy"] for role in never["mpiReplicaSpecs"].values()} == {"Never"}


@pytest.mark.parametrize(
    ("keys", "deadline"),
    [
        ({}, None),
        ({"total_timeout": "1h"}, 4200),
        ({"total_timeout": "1h", "launcher_lost_timeout": 150}, 3750),
        ({"total_timeout": 0.1, "launcher_lost_timeout": "unlimited"}, 600),
    ],
)
def test_the_deadline_of_the_job_is_later_than_that_of_the_step(keys, deadline):
    assert spec_of("Job", **keys).get("activeDeadlineSeconds") == deadline
    assert spec_of("TF", **keys)["runPolicy"].get("activeDeadlineSeconds") == deadline


def test_keep_job_removes_the_time_to_live():
    assert "ttlSecondsAfterFinished" not in spec_of("Job", keep_job=True)
    assert "ttlSecondsAfterFinished" not in spec_of("PyTorch", keep_job=True)["runPolicy"]


def test_only_exit_codes_of_own_containers_fail_a_job_without_a_retry():
    """The cluster may add other containers to the pod. Preemptions come first, whatever the exit code is.

    The second rule is for code 140 of the training's container, with which no other container ends for this reason.
    """
    spec = job_manifest(job(), replace(SETTINGS, packages=("numpy",)))["spec"]
    preempted, *rules = spec["podFailurePolicy"]["rules"]
    assert preempted == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert [(rule["action"], rule["onExitCodes"]["containerName"]) for rule in rules] == [
        ("Ignore", "training"),
        ("FailJob", "packages"),
        ("FailJob", "training"),
    ]


@pytest.mark.parametrize(("distribution_type", "mpi_version"), [("TF", None), ("PyTorch", None), ("MPI", "v1")])
def test_every_pod_gets_the_grace_period_and_its_program_is_told(distribution_type, mpi_version):
    settings = replace(
        with_settings(env=({"name": "KFP_DISTRIBUTED_GRACE_SECONDS", "value": "1"},)), mpi_version=mpi_version
    )
    spec = spec_of(distribution_type, settings, termination_grace_seconds="2m")
    roles = next(value for key, value in spec.items() if key.endswith("ReplicaSpecs")).values()
    pods = [role["template"]["spec"] for role in roles]
    assert {pod["terminationGracePeriodSeconds"] for pod in pods} == {120}
    variables = [entry for pod in pods for entry in pod["containers"][0]["env"]]
    assert {entry["value"] for entry in variables if entry["name"] == "KFP_DISTRIBUTED_GRACE_SECONDS"} == {"120"}


def test_packages_are_installed_before_the_replica_starts():
    proxy = {"name": "PIP_INDEX_URL", "value": "https://index.example.com/simple"}
    packages = (("numpy>=1.26,<3", "a; python_version<'3.13'"), ("tf_keras",))
    settings = replace(
        with_settings(env=(proxy, {"name": "PYTHONPATH", "value": "/of-the-task"})),
        packages=packages[0],
        packages_alone=packages[1],
    )
    manifest = pod_of(settings, worker_cpus=2)
    assert manifest["initContainers"] == [
        {
            "name": "packages",
            "image": "python:3.11",
            "command": install_command(*packages, folder="/kfp-distributed/packages"),
            "terminationMessagePath": "/kfp-distributed/work/peak-memory",
            "env": [
                {"name": "HOME", "value": "/kfp-distributed/work"},
                {"name": "PIP_CACHE_DIR", "value": "/tmp/pip"},
                proxy,
                {"name": "PYTHONPATH", "value": "/kfp-distributed/checked"},
            ],
            "resources": limits(cpu="2"),
            "volumeMounts": [
                {"name": "kfp-distributed-code", "mountPath": "/kfp-distributed/code"},
                {"name": "kfp-distributed-checked", "mountPath": "/kfp-distributed/checked"},
                {"name": "kfp-distributed-packages", "mountPath": "/kfp-distributed/packages"},
                {"name": "kfp-distributed-work", "mountPath": "/kfp-distributed/work"},
            ],
            "securityContext": SECURITY,
        }
    ]
    main = manifest["containers"][0]
    import_path = "/kfp-distributed/checked:/kfp-distributed/packages:/of-the-task"
    assert {"name": "PYTHONPATH", "value": import_path} in main["env"]
    assert {"name": "kfp-distributed-packages", "mountPath": "/kfp-distributed/packages"} in main["volumeMounts"]
    assert {"name": "kfp-distributed-packages", "emptyDir": {}} in manifest["volumes"]


def test_packages_without_dependencies_are_installed_too():
    (container,) = pod_of(replace(SETTINGS, packages_alone=("tf_keras",)))["initContainers"]
    assert container["command"][-3:] == ["--folder=/kfp-distributed/packages", "--alone=tf_keras", "--"]


def test_variables_of_the_task_come_last_and_replace_all_but_the_reserved_ones():
    replaced = {"name": "AWS_SECRET_ACCESS_KEY", "value": "$(OTHER)"}
    reserved = {"name": "KFP_DISTRIBUTED_JOB", "value": "of the task"}
    container = container_of(with_settings(env=({"name": "OTHER", "value": "1"}, reserved, replaced)))
    default_env = TEMPLATE["spec"]["containers"][0]["env"]
    assert container["env"] == [*default_env[:-1], {"name": "OTHER", "value": "1"}, replaced]


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ({"value": "/of-the-task"}, "/kfp-distributed/checked:/of-the-task"),
        ({"valueFrom": {"secretKeyRef": {}}}, "/kfp-distributed/checked"),
    ],
)
def test_the_library_stays_first_in_the_import_path(source, value):
    env = container_of(with_settings(env=({"name": "PYTHONPATH", **source},)))["env"]
    assert [entry for entry in env if entry["name"] == "PYTHONPATH"] == [{"name": "PYTHONPATH", "value": value}]


def test_pods_do_not_get_the_environment_of_local_processes():
    local_job = replace(job(), environment={"PYTHONPATH": "/local"})
    assert "/local" not in json.dumps(job_manifest(local_job, SETTINGS))


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
def test_resources_of_the_specification_replace_those_of_the_task(keys, task, resources):
    assert container_of(with_settings(resources=task), **keys).get("resources") == resources


def test_only_replicas_that_train_get_the_resources_of_the_task():
    settings = with_settings(resources={"limits": {"nvidia.com/gpu": "1"}})

    def roles_with_resources(specs):
        return {role for role, spec in specs.items() if "resources" in spec["template"]["spec"]["containers"][0]}

    tf_specs = spec_of("TF", settings, evaluator=True)["tfReplicaSpecs"]
    assert roles_with_resources(tf_specs) == {"Worker", "Evaluator"}
    assert roles_with_resources(spec_of("PyTorch", settings)["pytorchReplicaSpecs"]) == {"Master", "Worker"}
    mpi_specs = spec_of("MPI", replace(settings, mpi_version="v1"))["mpiReplicaSpecs"]
    assert roles_with_resources(mpi_specs) == {"Worker"}


def test_node_settings_of_the_specification_replace_those_of_the_task():
    task = {"node_selector": {"disk": "ssd"}, "tolerations": ({"operator": "Exists"},), "affinity": {"podAffinity": {}}}
    manifest = pod_of(with_settings(**task))
    assert manifest["nodeSelector"] == {"disk": "ssd"}
    assert manifest["tolerations"] == [{"operator": "Exists"}]
    assert manifest["affinity"] == {"podAffinity": {}}
    own = pod_of(
        with_settings(**task), node_selector={"pool": "gpu"}, tolerations=[{"key": "gpu", "operator": "Exists"}]
    )
    assert own["nodeSelector"] == {"pool": "gpu"}
    assert own["tolerations"] == [{"key": "gpu", "operator": "Exists"}]


def test_volumes_of_the_task_and_shared_memory_are_mounted():
    volume, mount = {"name": "data", "emptyDir": {}}, {"name": "data", "mountPath": "/data"}
    manifest = pod_of(with_settings(volumes=(volume,), volume_mounts=(mount,)), shared_memory="2Gi")
    default = TEMPLATE["spec"]
    memory = {"name": "kfp-distributed-shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}
    assert manifest["volumes"] == [*default["volumes"], memory, volume]
    assert manifest["containers"][0]["volumeMounts"] == [
        *default["containers"][0]["volumeMounts"],
        {"name": "kfp-distributed-shared-memory", "mountPath": "/dev/shm"},
        mount,
    ]


VOLUMES = [
    {"name": "data", "path": "/data", "read_only": True},
    {"name": "scratch", "path": "/scratch", "size": "10Gi"},
    {"name": "fast", "path": "/fast", "size": "1Gi", "access_mode": "ReadWriteOnce", "storage_class": "ssd"},
]


def test_every_replica_mounts_the_volumes():
    expected = [
        ({"claimName": "data", "readOnly": True}, "/data"),
        ({"claimName": "scratch", "readOnly": False}, "/scratch"),
        ({"claimName": "fast", "readOnly": False}, "/fast"),
    ]
    pods = [role["template"]["spec"] for role in spec_of("TF", volumes=VOLUMES)["tfReplicaSpecs"].values()]
    assert len(pods) == 3
    for pod in [pod_of(volumes=VOLUMES), *pods]:
        claims = {volume["name"]: volume["persistentVolumeClaim"] for volume in pod["volumes"][3:]}
        mounts = pod["containers"][0]["volumeMounts"][3:]
        assert [(claims[mount["name"]], mount["mountPath"]) for mount in mounts] == expected


@pytest.mark.parametrize(("distribution_type", "mode"), [("Job", "ReadWriteOnce"), ("TF", "ReadWriteMany")])
def test_the_access_mode_of_a_claim_depends_on_the_number_of_replicas(distribution_type, mode):
    def claim(name, mode, size, storage_class):
        labels = {"app.kubernetes.io/managed-by": "kfp-distributed"}
        metadata = {"name": name, "namespace": "training", "labels": labels}
        spec = {"accessModes": [mode], "resources": {"requests": {"storage": size}}, "storageClassName": storage_class}
        return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}

    # A claim has no owner even if the job has one, so it is not deleted with the job.
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "step", "uid": "1234"}
    assert volume_claims(job(distribution_type, volumes=VOLUMES), replace(SETTINGS, owner=owner)) == [
        claim("scratch", mode, "10Gi", None),
        claim("fast", "ReadWriteOnce", "1Gi", "ssd"),
    ]


@pytest.mark.parametrize("version", ["v1", "v2beta1"])
def test_the_command_of_mpi_has_the_names_of_credentials_and_not_their_values(version):
    key = {"name": "AWS_ACCESS_KEY_ID", "value": "secret-value"}
    settings = replace(SETTINGS, environment=(SECRET, key), mpi_version=version)
    launcher = spec_of("MPI", settings)["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    command = launcher["command"]
    assert command[command.index("AWS_ACCESS_KEY_ID") - 1] == "-x"
    assert not any("secret-value" in word for word in command)
