"""`kfp-distributed render`: what it prints, and what it says of wrong specifications."""

import base64
import json
import textwrap

import pytest
import yaml
from click.testing import CliRunner

from kfp_distributed.cli.main import main
from kfp_distributed.cli.rendered_objects import planned_job, rendered_objects
from kfp_distributed.components.train.describe.manifests import HASH_ANNOTATION
from kfp_distributed.library.archive import make_archive, read_archive
from kfp_distributed.library.content import REPLICA_PACKAGES, content_hash, read_library

pytestmark = pytest.mark.takes(11)

TEMPLATE = """\
        metadata:
          labels:
            app.kubernetes.io/managed-by: kfp-distributed
            kfp-distributed/job: train-4f73820a8556
            kfp-distributed/run: RUN
            kfp-distributed/task: train
          annotations:
            sidecar.istio.io/inject: 'false'
        spec:
          automountServiceAccountToken: false
          enableServiceLinks: false
          securityContext:
            runAsNonRoot: true
            runAsUser: 1000
            runAsGroup: 1000
            fsGroup: 1000
            seccompProfile:
              type: RuntimeDefault
          containers:
          - name: pytorch
            command:
            - python3
            - -I
            - -c
            - |
CHECK
            - train-4f73820a8556-code
            - CONTENT
            - /kfp-distributed/code
            - /kfp-distributed/checked
            - /kfp-distributed/work/peak-memory
            - python3
            - -m
            - kfp_distributed.trainers.runtime.entry
            workingDir: /kfp-distributed/work
            terminationMessagePath: /kfp-distributed/work/peak-memory
            env:
            - name: PYTHONPATH
              value: /kfp-distributed/checked
            - name: PYTHONUNBUFFERED
              value: '1'
            - name: HOME
              value: /kfp-distributed/work
            - name: KFP_DISTRIBUTED_JOB
              value: /kfp-distributed/checked/job.json
            - name: KFP_DISTRIBUTED_GRACE_SECONDS
              value: '30'
            - name: AWS_ENDPOINT_URL
              value: http://seaweedfs.kubeflow:9000
            - name: AWS_ACCESS_KEY_ID
              valueFrom:
                secretKeyRef:
                  name: mlpipeline-minio-artifact
                  key: accesskey
            - name: AWS_SECRET_ACCESS_KEY
              valueFrom:
                secretKeyRef:
                  name: mlpipeline-minio-artifact
                  key: secretkey
            volumeMounts:
            - name: kfp-distributed-code
              mountPath: /kfp-distributed/code
            - name: kfp-distributed-checked
              mountPath: /kfp-distributed/checked
            - name: kfp-distributed-work
              mountPath: /kfp-distributed/work
            image: team/trainer:1
            securityContext:
              allowPrivilegeEscalation: false
              capabilities:
                drop:
                - ALL
          volumes:
          - name: kfp-distributed-code
            configMap:
              name: train-4f73820a8556-code
          - name: kfp-distributed-checked
            emptyDir: {}
          - name: kfp-distributed-work
            emptyDir: {}
          terminationGracePeriodSeconds: 30"""

JOB = """\
# The objects that a train step would create in namespace team. Words in capitals stand for values of a run. The
# hash and the job's name depend on them. The object store is the one that Kubeflow Pipelines is installed with.
# Operator: training-operator, because auto prefers it; doctor says what auto takes on a cluster.
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: train-4f73820a8556
  namespace: team
  labels:
    app.kubernetes.io/managed-by: kfp-distributed
    kfp-distributed/job: train-4f73820a8556
    kfp-distributed/run: RUN
    kfp-distributed/task: train
  annotations:
    kfp-distributed/spec-hash: HASH
spec:
  runPolicy:
    cleanPodPolicy: Running
    backoffLimit: 2
    ttlSecondsAfterFinished: 3600
  nprocPerNode: '1'
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: Never
      template:
TEMPLATE
    Worker:
      replicas: 1
      restartPolicy: Never
      template:
TEMPLATE
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: train-4f73820a8556-code
  namespace: team
  labels:
    app.kubernetes.io/managed-by: kfp-distributed
    kfp-distributed/job: train-4f73820a8556
    kfp-distributed/run: RUN
    kfp-distributed/task: train
immutable: true
data:
  job.json: |-
    {
     "name": "train-4f73820a8556",
     "program": {
      "command": [
       "python3",
       "fit.py"
      ],
      "image": "team/trainer:1"
     },
     "parameters": {
      "epochs": 2
     },
     "train_uri": "minio://mlpipeline/v2/artifacts/PIPELINE/RUN/prepare-data/UUID/train_dataset",
     "validation_uri": "minio://mlpipeline/v2/artifacts/PIPELINE/RUN/prepare-data/UUID/validation_dataset",
     "model_uri": "minio://mlpipeline/v2/artifacts/PIPELINE/RUN/train/UUID/model",
     "checkpoint_uri": "minio://mlpipeline/v2/artifacts/PIPELINE/RUN/train/UUID/checkpoints/train-4f73820a8556/checkpoints",
     "metrics_uri": "minio://mlpipeline/v2/artifacts/PIPELINE/RUN/train/UUID/checkpoints/train-4f73820a8556/metrics",
     "leader": "master-0",
     "data_replicas": [
      "master-0",
      "worker-0"
     ],
     "parameter_servers": 0,
     "tensorboard": false,
     "heartbeat_uri": "minio://mlpipeline/v2/artifacts/PIPELINE/RUN/train/UUID/checkpoints/train-4f73820a8556/heartbeat"
    }
binaryData:
  library.zip: (SIZE bytes, --full prints them)
"""


def render(specification, distribution=None, parameters=None, *options):
    arguments = ["--train-specification", json.dumps(specification)]
    if distribution is not None:
        arguments += ["--distribution-specification", json.dumps(distribution)]
    if parameters is not None:
        arguments += ["--train-parameters", json.dumps(parameters)]
    return CliRunner().invoke(main, ["render", *arguments, *options])


def objects(*arguments):
    made = render(*arguments)
    assert made.exit_code == 0, made.output
    return list(yaml.safe_load_all(made.output))


def expected(found_hash):
    """The text above, with the library as it is now."""
    library = read_library(REPLICA_PACKAGES)
    check = textwrap.indent(library["kfp_distributed/library/code_check.py"].decode(), " " * 14).rstrip("\n")
    description = textwrap.dedent(JOB.partition("job.json: |-\n")[2].partition("binaryData")[0]).rstrip("\n")
    content = content_hash({**library, "job.json": description.encode()})
    size = f"{len(make_archive(library)):,}"
    text = JOB.replace("TEMPLATE", TEMPLATE).replace("HASH", found_hash).replace("SIZE", size)
    return text.replace("CHECK", check, 2).replace("CONTENT", content)


def test_a_volume_without_a_size_requires_an_existing_claim():
    volume = {"name": "corpus", "path": "/mnt/corpus", "read_only": True}
    job, *others = rendered_objects(planned_job({"command": ["run"]}, {}, {"volumes": [volume]}), "team", "v1")
    claims = [volume.get("persistentVolumeClaim") for volume in job["spec"]["template"]["spec"]["volumes"]]
    assert {"claimName": "corpus", "readOnly": True} in claims
    assert "PersistentVolumeClaim" not in {item["kind"] for item in others}


def test_a_claim_that_the_step_would_create_is_printed():
    volumes = [{"name": "corpus", "path": "/corpus"}, {"name": "scratch", "path": "/scratch", "size": "10Gi"}]
    made = render({"command": ["run"]}, {"volumes": volumes}, None, "--namespace", "team")
    claim = """\
---
# Created if there is no claim of this name. It has no owner, so it stays after the job is deleted.
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: scratch
  namespace: team
  labels:
    app.kubernetes.io/managed-by: kfp-distributed
spec:
  accessModes:
  - ReadWriteOnce
  resources:
    requests:
      storage: 10Gi
  storageClassName: null
"""
    assert made.output.endswith(claim)
    kinds = [item["kind"] for item in yaml.safe_load_all(made.output)]
    assert kinds == ["Job", "ConfigMap", "PersistentVolumeClaim"]


NO_IMAGE = "is not a valid name of an image; write HOST/NAME:TAG, with NAME in lower case"


@pytest.mark.parametrize(
    ("specification", "options", "error"),
    [
        ({"image": "NOT VALID"}, [], f"train_specification: image = 'NOT VALID' {NO_IMAGE}"),
        (
            {"image": "reg.example.com/Team/fit:1"},
            [],
            f"train_specification: image = 'reg.example.com/Team/fit:1' {NO_IMAGE}",
        ),
        ({}, ["--image", "team/fit :1"], f"--image = 'team/fit :1' {NO_IMAGE}"),
        (
            {},
            ["--namespace", "a.b"],
            "--namespace = 'a.b' is not a valid name of a namespace: at most 63 of a-z, 0-9 and '-'",
        ),
    ],
)
def test_invalid_specifications_and_options_are_refused(specification, options, error):
    made = render({"command": ["run"], **specification}, None, None, *options)
    assert made.exit_code == 2
    assert made.output.startswith(f"Error: {error}")


def test_an_invalid_image_of_the_environment_is_an_error(monkeypatch):
    monkeypatch.setenv("KFP_DISTRIBUTED_HOROVOD_IMAGE", "NOT VALID")
    made = render({"command": ["run"]}, {"distribution_type": "MPI"})
    assert made.output == f"Error: KFP_DISTRIBUTED_HOROVOD_IMAGE = 'NOT VALID' {NO_IMAGE}\n"


@pytest.mark.parametrize(
    "image", ["python:3.11", "[::1]:5000/a/b__c-d:V1.2", f"reg.example.com:5000/fit@sha256:{64 * 'a'}", "localhost/fit"]
)
def test_an_invalid_image_is_an_error(image):
    job, *_ = objects({"command": ["run"], "image": image})
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == image


def test_all_objects_of_a_training_are_printed():
    distribution = {
        "distribution_type": "PyTorch",
        "number_of_workers": 1,
        "restart_limit": 0,
        "launcher_lost_timeout": "unlimited",
    }
    made = render(
        {"command": ["python3", "fit.py"]},
        distribution,
        {"epochs": 2},
        *["--namespace", "team", "--image", "team/trainer:1"],
    )
    assert made.exit_code == 0
    found_hash = yaml.safe_load(made.output.split("\n---\n")[1])["metadata"]["annotations"][HASH_ANNOTATION]
    assert made.output == expected(found_hash)


def test_full_prints_the_library():
    _, code = objects({"trainer": "keras_classifier"}, None, None, "--full")
    archive = base64.b64decode(code["binaryData"]["library.zip"])
    assert read_archive(archive) == read_library(REPLICA_PACKAGES)


@pytest.mark.parametrize(
    ("distribution", "options", "kind"),
    [
        ({}, [], "batch/v1 Job"),
        ({"distribution_type": "TF"}, [], "kubeflow.org/v1 TFJob"),
        ({"distribution_type": "MPI"}, ["--image", "i:1"], "kubeflow.org/v2beta1 MPIJob"),
        ({"distribution_type": "MPI"}, ["--image", "i:1", "--mpi-version", "v1"], "kubeflow.org/v1 MPIJob"),
        ({"distribution_type": "MPI", "min_workers": 1}, ["--image", "i:1"], "kubeflow.org/v1 MPIJob"),
    ],
)
def test_each_kind_is_rendered(distribution, options, kind):
    job, code = objects({"command": ["python", "main.py"]}, distribution, {}, *options)
    assert f"{job['apiVersion']} {job['kind']}" == kind
    assert (code["kind"], code["metadata"]["name"].rpartition("-")[2]) == ("ConfigMap", "code")


@pytest.mark.parametrize(
    ("keys", "options", "operator", "kinds"),
    [
        ({}, [], "training-operator, because auto prefers it; doctor says what auto takes on a cluster", ["TFJob"]),
        ({}, ["--operator", "trainer"], "trainer, because --operator = trainer", ["TrainingRuntime", "TrainJob"]),
        (
            {"operator": "trainer"},
            ["--operator", "training-operator"],
            "trainer, because distribution_specification has operator = trainer",
            ["TrainingRuntime", "TrainJob"],
        ),
        (
            {"operator": "training-operator"},
            ["--operator", "trainer"],
            "training-operator, because distribution_specification has operator = training-operator",
            ["TFJob"],
        ),
    ],
)
def test_the_operator_and_its_reason_are_printed(keys, options, operator, kinds):
    output = render({"command": ["run"]}, {"distribution_type": "TF", **keys}, None, *options).output
    assert [line for line in output.splitlines() if line.startswith("# Operator")] == [f"# Operator: {operator}."]
    assert [item["kind"] for item in yaml.safe_load_all(output)] == [*kinds, "ConfigMap"]


def test_a_list_of_numbers_is_one_line():
    exit_codes = ", ".join(map(str, range(1, 128)))
    assert f"        values: [{exit_codes}]\n" in render({"trainer": "keras_classifier"}).output


def test_options_are_read_from_files(tmp_path):
    file = tmp_path / "specification.json"
    file.write_text('{"trainer": "keras_classifier"}')
    made = CliRunner().invoke(main, ["render", "--train-specification", f"@{file}"])
    assert made.output == render({"trainer": "keras_classifier"}).output


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ({"trainer": "keras_classifier"}, {"gpus": 1}),
            "distribution_specification: 'gpus' = 1 is not a known key; did you mean worker_gpus?",
        ),
        (
            ({"trainer": "keras_classifier"}, {"launcher_lost_timeout": 10}),
            "launcher_lost_timeout = 10 is too short on Kubernetes; set it to at least 60 seconds",
        ),
        (
            ({"function": "fit", "source": "def fit(model_dir, epochs: int): pass"}, {}, {}),
            "train_parameters: fit needs epochs",
        ),
        (({"trainer": "keras_classifier"}, {}, []), "train_parameters is []; allowed: a dict"),
    ],
)
def test_the_error_of_a_wrong_specification_is_that_of_the_step(arguments, error):
    made = render(*arguments)
    assert (made.exit_code, made.output) == (2, f"Error: {error}\n")


def test_an_empty_namespace_is_refused():
    """An unset variable of a shell leaves it, and a default would be another namespace than the user means."""
    specification = ["--train-specification", '{"trainer": "keras_classifier"}']
    refused = CliRunner().invoke(main, ["render", *specification, "--namespace", ""])
    assert (refused.exit_code, refused.output.partition(" is not")[0]) == (2, "Error: --namespace = ''")


@pytest.mark.parametrize("value", ["{", "@/nowhere.json"])
def test_a_value_that_is_not_json_is_refused(value):
    made = CliRunner().invoke(main, ["render", "--train-specification", value])
    assert made.exit_code == 2
    assert made.output.startswith(f"Error: --train-specification {value!r} is neither JSON nor @FILE with JSON: ")
    assert made.output.count("\n") == 1
