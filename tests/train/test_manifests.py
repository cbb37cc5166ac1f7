"""Whole manifests: one of each kind is written out here, variants are compared with it."""

import base64
import io
import json
import zipfile
from copy import deepcopy
from dataclasses import replace

import pytest
from train.programs.jobs import make_job

from kfp_distributed.components.train.describe import manifests
from kfp_distributed.components.train.describe.manifests import (
    HASH_ANNOTATION,
    JobKind,
    code_config_map,
    job_kind,
    job_manifest,
)
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings, TaskSettings
from kfp_distributed.library.archive import make_archive, make_small_archive
from kfp_distributed.library.content import content_hash, read_library

CODE_CHECK = read_library(["library"])["kfp_distributed/library/code_check.py"].decode()
LABELS = {
    "app.kubernetes.io/managed-by": "kfp-distributed",
    "kfp-distributed/job": "a-job",
    "kfp-distributed/run": "run-1",
    "kfp-distributed/task": "train",
}
LIBRARY = {"kfp_distributed/trainers/runtime/entry.py": b"print('hello')\n"}
SECRET = {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": {"secretKeyRef": {"name": "store", "key": "secretkey"}}}
SETTINGS = ClusterSettings("training", "python:3.11", environment=(SECRET,), library=LIBRARY)
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "step", "uid": "1234"}

SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
CODE = {"name": "kfp-distributed-code", "configMap": {"name": "a-job-code"}}
TEMPLATE = {
    "metadata": {"labels": LABELS, "annotations": {"sidecar.istio.io/inject": "false"}},
    "spec": {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "training",
                "image": "python:3.11",
                "command": ["python3", "-m", "kfp_distributed.trainers.runtime.entry"],
                "workingDir": "/kfp-distributed/work",
                "terminationMessagePath": "/kfp-distributed/work/peak-memory",
                "env": [
                    {"name": "PYTHONPATH", "value": "/kfp-distributed/checked"},
                    {"name": "PYTHONUNBUFFERED", "value": "1"},
                    {"name": "HOME", "value": "/kfp-distributed/work"},
                    {"name": "KFP_DISTRIBUTED_JOB", "value": "/kfp-distributed/checked/job.json"},
                    {"name": "KFP_DISTRIBUTED_GRACE_SECONDS", "value": "30"},
                    {"name": "KFP_DISTRIBUTED_LAUNCHER_LOST_SECONDS", "value": "600"},
                    SECRET,
                ],
                "volumeMounts": [
                    {"name": "kfp-distributed-code", "mountPath": "/kfp-distributed/code"},
                    {"name": "kfp-distributed-checked", "mountPath": "/kfp-distributed/checked"},
                    {"name": "kfp-distributed-work", "mountPath": "/kfp-distributed/work"},
                ],
                "securityContext": SECURITY,
            }
        ],
        "volumes": [
            CODE,
            {"name": "kfp-distributed-checked", "emptyDir": {}},
            {"name": "kfp-distributed-work", "emptyDir": {}},
        ],
    },
}


def job(distribution_type="Job", program=None, **keys):
    planned = make_job(["unused"], {"distribution_type": distribution_type, **keys}, program=program)
    return replace(planned, labels={"run": "run-1", "task": "train"})


def manifest_of(planned, settings=SETTINGS):
    """Return a manifest without the check of the code, with which the commands of all its containers begin."""
    manifest = job_manifest(planned, settings)
    content = content_hash({**settings.library, "job.json": planned.description.to_json().encode()})
    paths = ["/kfp-distributed/code", "/kfp-distributed/checked", "/kfp-distributed/work/peak-memory"]
    check = ["python3", "-I", "-c", CODE_CHECK, "a-job-code", content, *paths]
    for container in containers_of(manifest):
        assert container["command"][: len(check)] == check
        container["command"] = container["command"][len(check) :]
    return manifest


def containers_of(value):
    """Yield all containers of the pod templates in a manifest."""
    if isinstance(value, dict):
        yield from [*value.get("initContainers", ()), *value.get("containers", ())]
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from containers_of(item)


def spec_of(distribution_type, settings=SETTINGS, **keys):
    return manifest_of(job(distribution_type, **keys), settings)["spec"]


def pod_of(settings=SETTINGS, **keys):
    return spec_of("Job", settings, **keys)["template"]["spec"]


def template(container, resources=None, **changes):
    """Return TEMPLATE with another container name, its resources and other changes of the container."""
    changed = deepcopy(TEMPLATE)
    changed["spec"]["containers"][0] |= {
        "name": container,
        **({"resources": resources} if resources else {}),
        **changes,
    }
    return changed


def with_settings(**changes):
    return replace(SETTINGS, task=TaskSettings(**changes))


def limits(**values):
    return {"limits": values, "requests": values}


@pytest.mark.parametrize(
    ("timeouts", "limits", "ignored"),
    [
        ({}, {}, [140]),
        # A replica that never reaches the object store is ended by the deadline.
        ({"total_timeout": 3600}, {"activeDeadlineSeconds": 4200}, [140, 147]),
    ],
)
def test_the_manifest_of_a_job(timeouts, limits, ignored):
    manifest = manifest_of(job(**timeouts))
    spec_hash = manifest["metadata"]["annotations"].pop(HASH_ANNOTATION)
    assert len(spec_hash) == 32
    expected_template = deepcopy(TEMPLATE)
    expected_template["spec"]["restartPolicy"] = "Never"
    assert manifest == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "a-job", "namespace": "training", "labels": LABELS, "annotations": {}},
        "spec": {
            "backoffLimit": 3,
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    {
                        "action": "Ignore",
                        "onExitCodes": {"containerName": "training", "operator": "In", "values": ignored},
                    },
                    {
                        "action": "FailJob",
                        "onExitCodes": {"containerName": "training", "operator": "In", "values": list(range(1, 128))},
                    },
                ]
            },
            "template": expected_template,
            **limits,
            "ttlSecondsAfterFinished": 3600,
        },
    }


def test_the_manifest_of_a_tf_job():
    keys = {"worker_cpus": 4, "worker_memory": "8Gi", "worker_gpus": 1, "ps_cpus": 1, "launcher_memory": "2Gi"}
    manifest = manifest_of(job("TF", number_of_workers=3, evaluator=True, **keys))
    del manifest["metadata"]["annotations"][HASH_ANNOTATION]
    worker = template("tensorflow", limits(**{"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"}))
    assert manifest == {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "a-job", "namespace": "training", "labels": LABELS, "annotations": {}},
        "spec": {
            # One chief, three parameter servers, three workers and one evaluator, each with four starts: 32.
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 32, "ttlSecondsAfterFinished": 3600},
            "tfReplicaSpecs": {
                "Chief": {
                    "replicas": 1,
                    "restartPolicy": "ExitCode",
                    "template": template("tensorflow", limits(memory="2Gi")),
                },
                "PS": {
                    "replicas": 3,
                    "restartPolicy": "ExitCode",
                    "template": template("tensorflow", limits(cpu="1", memory="8Gi")),
                },
                "Worker": {"replicas": 3, "restartPolicy": "ExitCode", "template": worker},
                "Evaluator": {"replicas": 1, "restartPolicy": "ExitCode", "template": worker},
            },
        },
    }


def test_a_tf_job_without_parameter_servers_has_only_workers():
    assert spec_of("TF", number_of_workers=3, number_of_parameter_servers=0) == {
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 12, "ttlSecondsAfterFinished": 3600},
        "tfReplicaSpecs": {"Worker": {"replicas": 3, "restartPolicy": "ExitCode", "template": template("tensorflow")}},
    }


def test_the_manifest_of_a_pytorch_job():
    manifest = manifest_of(job("PyTorch", number_of_workers=3, worker_gpus=2, launcher_cpus=2))
    del manifest["metadata"]["annotations"][HASH_ANNOTATION]
    gpus = {"nvidia.com/gpu": "2"}
    assert manifest == {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "a-job", "namespace": "training", "labels": LABELS, "annotations": {}},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 16, "ttlSecondsAfterFinished": 3600},
            "nprocPerNode": "2",
            "pytorchReplicaSpecs": {
                "Master": {
                    "replicas": 1,
                    "restartPolicy": "ExitCode",
                    "template": template("pytorch", limits(cpu="2", **gpus)),
                },
                "Worker": {
                    "replicas": 3,
                    "restartPolicy": "ExitCode",
                    "template": template("pytorch", limits(**gpus)),
                },
            },
        },
    }


def test_the_counts_of_an_elastic_pytorch_job_include_the_master():
    elastic = spec_of("PyTorch", number_of_workers=2, min_workers=1, max_workers=4, restart_limit=5)
    fixed = spec_of("PyTorch", number_of_workers=2, restart_limit=5)
    assert elastic == {
        **fixed,
        "elasticPolicy": {
            "minReplicas": 2,
            "maxReplicas": 5,
            "rdzvBackend": "c10d",
            "rdzvHost": "a-job-master-0",
            "rdzvConf": [{"key": "last_call_timeout", "value": "10"}],
            "maxRestarts": 5,
        },
    }


VARIABLES = [
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "HOME",
    "KFP_DISTRIBUTED_JOB",
    "KFP_DISTRIBUTED_GRACE_SECONDS",
    "AWS_SECRET_ACCESS_KEY",
]
WATCHED = ["python3", "-m", "kfp_distributed.trainers.runtime.launcher"]
UNLESS_TRAINED = ["python3", "-m", "kfp_distributed.trainers.runtime.unless_trained"]
WAIT_FOR_WORKERS = """\
trap 'exit 143' TERM
while read -r host _
do until /opt/kube/kubectl exec $host -c mpi -- true || [ $((n+=1)) -gt 600 ]; do sleep 1; done >/dev/null 2>&1 &
done </etc/mpi/hostfile
wait
exec "$@"
"""
MPIRUN = [
    *("mpirun", "--allow-run-as-root", "--bind-to", "none", "--tag-output"),
    *("-np", "6", "--map-by", "slot", "--mca", "btl_vader_single_copy_mechanism", "none"),
    *("--mca", "mpi_yield_when_idle", "1"),
]
AWAIT_COPY = 'until [ -e /kfp-distributed/checked/job.json ]; do sleep 1; done; exec "$@"'
AFTER_COPY = ["sh", "-c", AWAIT_COPY, "sh"]
RANK_ARGUMENTS = [
    *("--wdir", "/kfp-distributed/work"),
    *(word for name in VARIABLES for word in ("-x", name)),
    *AFTER_COPY,
    *("python3", "-m", "kfp_distributed.trainers.runtime.entry"),
]


def test_the_manifest_of_an_mpi_job_v1():
    keys = {"number_of_workers": 3, "slots_per_worker": 2, "worker_cpus": 2, "launcher_cpus": 1}
    manifest = manifest_of(job("MPI", **keys), replace(SETTINGS, mpi_version="v1"))
    del manifest["metadata"]["annotations"][HASH_ANNOTATION]
    launcher = template(
        "mpi",
        limits(cpu="1"),
        command=[*WATCHED, *UNLESS_TRAINED, "sh", "-c", WAIT_FOR_WORKERS, "sh", *MPIRUN, *RANK_ARGUMENTS],
    )
    # kubectl exec, which starts the ranks in the workers, calls the API server.
    launcher["spec"]["automountServiceAccountToken"] = True
    assert manifest == {
        "apiVersion": "kubeflow.org/v1",
        "kind": "MPIJob",
        "metadata": {"name": "a-job", "namespace": "training", "labels": LABELS, "annotations": {}},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 16, "ttlSecondsAfterFinished": 3600},
            "slotsPerWorker": 2,
            "mainContainer": "mpi",
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "restartPolicy": "OnFailure", "template": launcher},
                "Worker": {
                    "replicas": 3,
                    "restartPolicy": "OnFailure",
                    "template": template("mpi", limits(cpu="2"), command=[*WATCHED, "--idle", "sleep", "infinity"]),
                },
            },
        },
    }


def test_an_elastic_mpi_job_is_started_by_horovod():
    settings, keys = replace(SETTINGS, mpi_version="v1"), {"number_of_workers": 3, "slots_per_worker": 2}
    elastic = spec_of("MPI", settings, **keys, min_workers=1, max_workers=5)
    expected = spec_of("MPI", settings, **keys)
    launcher = expected["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    launcher["command"] = [
        "python3",
        "-m",
        "kfp_distributed.trainers.runtime.horovodrun",
        "3",
        "1",
        "5",
        "2",
        *RANK_ARGUMENTS[-7:],
    ]
    assert elastic == expected


def test_an_elastic_mpi_job_of_v2beta1_is_refused():
    with pytest.raises(ValueError, match=r"^min_workers = 1: .*MPIJob v1.* v2beta1; remove min_workers and max_work"):
        spec_of("MPI", replace(SETTINGS, mpi_version="v2beta1"), min_workers=1)


def test_the_manifest_of_an_mpi_job_v2beta1():
    keys = {"number_of_workers": 3, "slots_per_worker": 2, "worker_cpus": 2, "launcher_cpus": 1}
    manifest = manifest_of(job("MPI", **keys), replace(SETTINGS, mpi_version="v2beta1"))
    del manifest["metadata"]["annotations"][HASH_ANNOTATION]
    ssh = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectionAttempts=10"
    launcher = template(
        "mpi",
        limits(cpu="1"),
        command=[
            *(*WATCHED, *UNLESS_TRAINED, *MPIRUN, "--mca", "plm_rsh_args", ssh),
            *(*RANK_ARGUMENTS[:-7], *RANK_ARGUMENTS[-3:]),
        ],
    )
    worker = template(
        "mpi", limits(cpu="2"), command=[*WATCHED, "--idle", "/usr/sbin/sshd", "-De", "-o", "StrictModes=no"]
    )
    for root_template in (launcher, worker):
        root_template["spec"]["securityContext"] = {"runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}}
        del root_template["spec"]["containers"][0]["securityContext"]
    assert manifest == {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": "a-job", "namespace": "training", "labels": LABELS, "annotations": {}},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 3, "ttlSecondsAfterFinished": 3600},
            "slotsPerWorker": 2,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "mpiImplementation": "OpenMPI",
            "sshAuthMountPath": "/root/.ssh",
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": launcher},
                "Worker": {"replicas": 3, "restartPolicy": "OnFailure", "template": worker},
            },
        },
    }


@pytest.mark.parametrize(
    ("distribution_type", "mpi_version", "kind"),
    [
        ("Job", None, JobKind("Job", "batch", "v1", "jobs")),
        ("TF", None, JobKind("TFJob", "kubeflow.org", "v1", "tfjobs")),
        ("PyTorch", "v1", JobKind("PyTorchJob", "kubeflow.org", "v1", "pytorchjobs")),
        ("MPI", None, JobKind("MPIJob", "kubeflow.org", "v1", "mpijobs")),
        ("MPI", "v1", JobKind("MPIJob", "kubeflow.org", "v1", "mpijobs")),
        ("MPI", "v2beta1", JobKind("MPIJob", "kubeflow.org", "v2beta1", "mpijobs")),
    ],
)
def test_each_distribution_type_has_its_kind(distribution_type, mpi_version, kind):
    assert job_kind(distribution_type, mpi_version) == kind


def test_the_code_config_map_has_the_job_and_the_archive_of_the_library():
    planned = job(program={"function": "fit", "source": "…"})
    assert code_config_map(planned, replace(SETTINGS, owner=OWNER)) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a-job-code", "namespace": "training", "labels": LABELS, "ownerReferences": [OWNER]},
        "immutable": True,
        "data": {"job.json": planned.description.to_json()},
        "binaryData": {"library.zip": base64.b64encode(make_archive(LIBRARY)).decode()},
    }


def test_a_program_that_is_too_large_is_refused_with_its_size():
    code_config_map(job(program={"command": ["x" * 1_040_000]}), SETTINGS)
    # The size is counted in bytes, not in characters.
    planned = job(program={"command": ["é" * 200_000]})
    archive = min(make_archive(LIBRARY), make_small_archive(LIBRARY), key=len)
    size = len(planned.description.to_json().encode()) + len(archive)
    assert size > 1024 * 1024
    with pytest.raises(ValueError, match=rf'^train_specification .* {size} bytes.* 1048576\..*"image"'):
        job_manifest(planned, SETTINGS)


@pytest.mark.parametrize(
    ("modules", "compression"), [(100, zipfile.ZIP_STORED), (200, zipfile.ZIP_DEFLATED), (500, zipfile.ZIP_BZIP2)]
)
def test_files_without_room_are_compressed_together(modules, compression):
    """bzip2 is the last one, because Python has a module for it that some builds lack."""
    alike = [f"value_{number} = {number * 7919 % 1000}\n" for number in range(2000)]
    library = {f"kfp_distributed/module_{n}.py": "".join(alike[n:] + alike[:n]).encode() for n in range(modules)}
    archive = code_config_map(job(), replace(SETTINGS, library=library))["binaryData"]["library.zip"]
    stored = compression == zipfile.ZIP_STORED
    assert base64.b64decode(archive) == (make_archive(library) if stored else make_small_archive(library, compression))


def test_a_step_with_all_of_the_library_has_room_for_new_code():
    """Jobs of prepare_data and predict have it: pods of theirs do the work of the step."""
    object_ = code_config_map(job(), replace(SETTINGS, library=read_library()))
    archive = base64.b64decode(object_["binaryData"]["library.zip"])
    assert {entry.compress_type for entry in zipfile.ZipFile(io.BytesIO(archive)).filelist} <= {0, zipfile.ZIP_DEFLATED}
    assert len(archive) < 0.9 * 2**20


def test_without_launcher_lost_timeout_the_pods_have_no_variable_for_it():
    assert "KFP_DISTRIBUTED_LAUNCHER_LOST_SECONDS" in json.dumps(pod_of())
    assert "launcher" not in json.dumps(pod_of(launcher_lost_timeout="unlimited")).lower()


def test_the_owner_is_set_on_the_job_and_not_hashed():
    owned = job_manifest(job(), replace(SETTINGS, owner=OWNER))
    assert owned["metadata"].pop("ownerReferences") == [OWNER]
    assert owned == job_manifest(job(), SETTINGS)


def _hash(planned=None, settings=SETTINGS):
    return job_manifest(planned or job(), settings)["metadata"]["annotations"][HASH_ANNOTATION]


def test_the_hash_depends_on_specification_program_library_and_settings():
    other_parameters = replace(job(), description=replace(job().description, parameters={"epochs": 3}))
    hashes = [
        _hash(),
        _hash(other_parameters),
        _hash(job(worker_cpus=2)),
        _hash(job(program={"command": ["other"]})),
        _hash(settings=replace(SETTINGS, image="python:3.12")),
        _hash(settings=replace(SETTINGS, library={**LIBRARY, "kfp_distributed/trainers/runtime/entry.py": b"pass"})),
        _hash(settings=replace(SETTINGS, packages=("scipy",))),
        _hash(settings=with_settings(env=({"name": "A", "value": "1"},))),
    ]
    assert len(set(hashes)) == len(hashes)
    # Another version of zlib creates another archive of the same content.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifests, "make_archive", lambda content: b"other bytes")
        assert _hash() == hashes[0]
