"""`kfp-distributed doctor` without a cluster: where there is nothing to look at, and on one that is made up."""

import json
import shlex
import socket
from typing import ClassVar

import pytest
import yaml
from click.testing import CliRunner
from compiled import SPECS

from kfp_distributed.cli.main import main
from kfp_distributed.cluster_api import configuration as own_cluster
from kfp_distributed.cluster_api.client import ClusterApi, ClusterError

pytestmark = pytest.mark.takes(2)

NOWHERE = """\
apiVersion: v1
kind: Config
current-context: nowhere
contexts: [{name: nowhere, context: {cluster: nowhere, user: nobody}}]
clusters: [{name: nowhere, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: nobody, user: {}}]
"""


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "KFP_DISTRIBUTED_OBJECT_STORE_SECRET"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def configure(tmp_path, monkeypatch):
    """Makes a text the configuration."""

    def write(text):
        file = tmp_path / "kubeconfig"
        if isinstance(text, str | bytes):
            file.write_bytes(text.encode() if isinstance(text, str) else text)
        else:
            file.mkdir()
        monkeypatch.setenv("KUBECONFIG", str(file))
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(file))
        return file

    return write


def test_a_cluster_that_does_not_answer(configure):
    configure(NOWHERE)
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    first, fix = result.output.splitlines()
    assert first.startswith("failed   cluster: the API server http://127.0.0.1:1 does not answer: ")
    assert fix == "         -> run kubectl cluster-info with the same KUBECONFIG"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--distribution", '{"gpus": 1}'], "distribution_specification: 'gpus' = 1 is not a known key; did you mean "),
        (
            ["--namespace", "Team_A"],
            "--namespace = 'Team_A' is not a valid name of a namespace: at most 63 of a-z, ",
        ),
        (
            ["--namespace", "a.b"],
            "--namespace = 'a.b' is not a valid name of a namespace: at most 63 of a-z, ",
        ),
        (
            ["--service-account", "Bad Name!"],
            "--service-account = 'Bad Name!' is not the name of a Kubernetes object: at most 253 "
            "characters out of a-z, 0-9, '-' and '.'",
        ),
        (["--image", "NOT VALID"], "--image = 'NOT VALID' is not a valid name of an image; write HOST/NAME:TAG"),
        (["--bucket", "bucket"], "--bucket: 'bucket' is not in object storage; allowed are s3://bucket/key and"),
        (
            ["--bucket", "gs://bucket"],
            "--bucket: 'gs://bucket' is not a storage address: use s3://bucket/key, minio://",
        ),
    ],
)
def test_a_wrong_argument(arguments, error):
    result = CliRunner().invoke(main, ["doctor", *arguments])
    assert result.exit_code == 2
    assert result.output.startswith(f"Error: {error}")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, ": No such file or directory"),
        (b"\xff\xfe", " is not YAML: it is not UTF-8 text"),
        (b"kind: Pod\n", " is not a compiled pipeline: it has no deploymentSpec"),
    ],
)
def test_a_file_that_is_not_a_compiled_pipeline_is_refused(tmp_path, content, error):
    file = tmp_path / "pipeline.yaml"
    if content is not None:
        file.write_bytes(content)
    result = CliRunner().invoke(main, ["doctor", "--pipeline", str(file)])
    assert (result.exit_code, result.output) == (2, f"Error: --pipeline {file}{error}\n")


@pytest.mark.parametrize(
    "content",
    [
        "127.0.0.1 localhost\n",
        "- a\n- list\n",
        b"\x00\xff",
        NOWHERE.replace('"http://127.0.0.1:1"', "1"),
        NOWHERE.replace("user: {}", "user: 5"),
        None,
    ],
    ids=["text", "list", "binary", "server", "user", "folder"],
)
def test_an_invalid_kubeconfig_is_refused(configure, content):
    file = configure(content)
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 2
    assert result.output.startswith(f"Error: {file} is not a valid cluster configuration, set KUBECONFIG ")
    assert result.output.count("\n") == 1


@pytest.mark.parametrize(
    ("value", "namespace"), [("", "default"), ("null", "default"), ("team", "team"), ("5", "5"), ("a.b", "")]
)
def test_the_namespace_of_the_context(configure, monkeypatch, value, namespace):
    configure(NOWHERE.replace("user: nobody", f"user: nobody, namespace: {value or chr(34) * 2}"))
    monkeypatch.setattr(own_cluster, "ClusterApi", MadeUp)
    result = CliRunner().invoke(main, ["doctor"])
    if namespace:
        assert f"namespace {namespace}\n" in result.output
    else:
        assert result.output.startswith(
            "Error: the namespace of the configuration's context = 'a.b' is not a valid name"
        )


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("nonsense://x", "the object store's endpoint 'nonsense://x' must be http(s)://HOST:PORT"),
        ("http://x:70000", "Port out of range 0-65535"),
    ],
)
def test_an_invalid_address_of_the_store_is_refused(monkeypatch, name, url, error):
    monkeypatch.setenv(name, url)
    result = CliRunner().invoke(main, ["doctor"])
    assert (result.exit_code, result.output) == (2, f"Error: {name}: {error}; correct it, or unset {name}\n")


SERVED = {"/apis/batch/v1": ["jobs"], "/apis/kubeflow.org/v1": ["tfjobs", "pytorchjobs"]}
SERVED["/apis/kubeflow.org/v2beta1"] = ["mpijobs"]
PRESENT = ("/secrets/mlpipeline-minio-artifact", "/kubeflow/services/minio-service")


class MadeUp(ClusterApi):
    """A cluster with everything, but what may be refused."""

    refused: frozenset[str] = frozenset()
    served: ClassVar[dict[str, list[str]]] = SERVED
    keys: ClassVar[dict[str, str]] = {}

    def __init__(self, configuration, namespace):
        self.namespace = namespace

    def call(self, method, path, body=None, *others, **settings):
        if path in self.refused:
            raise ClusterError(403, f'forbidden: User "system:anonymous" cannot get path "{path}"')
        if method == "POST":
            asked = body.get("spec", {}).get("resourceAttributes", {})
            allowed = f"{asked.get('verb')} {asked.get('resource')}" not in self.refused
            return {"status": {"allowed": allowed, "userInfo": {"username": "ann"}}}
        empty = {"metadata": {"resourceVersion": "1"}, "items": []}
        answers = {"/version": {"gitVersion": "v1.34.3"}, "/api/v1/nodes": empty}
        versions = [{"version": key.rpartition("/")[2]} for key in self.served if key.startswith(f"{path}/")]
        answers |= {path: {"versions": versions}} if versions else {}
        answers["/apis/apps/v1/deployments"] = empty
        if path.endswith(PRESENT):
            return {"kind": "Something", "data": self.keys}
        if path not in self.served and path not in answers:
            raise ClusterError(404, f"{path} is not there")
        return answers.get(path) or {"resources": [{"name": name} for name in self.served[path]]}


@pytest.fixture
def ask(configure, monkeypatch):
    """Asks doctor about a made-up cluster that refuses what is named; gives each check with its lines."""

    def invoke(*arguments, refused=(), configuration=NOWHERE):
        configure(configuration)
        monkeypatch.setattr(MadeUp, "refused", frozenset(refused))
        monkeypatch.setattr(own_cluster, "ClusterApi", MadeUp)
        result = CliRunner().invoke(main, ["doctor", *arguments], catch_exceptions=False)
        return result.exit_code, result.output.splitlines()

    return invoke


@pytest.mark.parametrize(
    ("user", "fix"),
    [
        ("missing", "kubectl config get-users, and name one of them: kubectl config set-context nowhere --user NAME"),
        ("nobody", "log in again, or set a valid token: kubectl config set-credentials nobody --token TOKEN"),
    ],
)
@pytest.mark.parametrize("path", ["/version", "/apis/batch/v1"])
def test_rejected_credentials_are_reported_with_a_fix(ask, user, fix, path):
    configuration = NOWHERE.replace("user: nobody", f"user: {user}")
    code, lines = ask(refused=[path], configuration=configuration)
    assert code == 1
    assert len(lines) == 2
    assert lines[0].startswith("failed   user: ")
    assert f"user {user}" in lines[0]
    assert "context nowhere" in lines[0]
    assert lines[1] == f"         -> {fix}"


@pytest.mark.parametrize(
    ("volume", "missing"),
    [
        ({"name": "scratch", "path": "/scratch", "size": "1Gi"}, "create, get persistentvolumeclaims"),
        ({"name": "corpus", "path": "/corpus"}, "get persistentvolumeclaims"),
        (None, ""),
    ],
)
def test_volumes_require_additional_permissions(ask, volume, missing):
    distribution = json.dumps({"volumes": [volume]} if volume else {})
    refused = ["create persistentvolumeclaims", "get persistentvolumeclaims"]
    code, lines = ask("--distribution", distribution, refused=refused)
    (permissions,) = [line for line in lines if " permissions: " in line]
    assert code == 1
    assert permissions == (
        f"failed   permissions: ann may not, in default: {missing}"
        if missing
        else "ok       permissions: ann has all permissions that a train step needs in default"
    )


def test_the_fix_of_an_unchecked_bucket_repeats_the_same_command(ask):
    distribution = {"distribution_type": "Job", "volumes": [{"name": "corpus", "path": "/corpus"}]}
    options = ["--namespace", "team", "--distribution", json.dumps(distribution), "--image", "fit:1"]
    options += ["--service-account", "runner", "--bucket", "s3://b/it's mine"]
    _, lines = ask(*options)
    fix = lines[[" bucket: " in line for line in lines].index(True) + 1]
    assert shlex.split(fix)[-len(options) - 2 :] == ["kfp-distributed", "doctor", *options]


def test_the_buckets_of_a_pipeline_are_checked(ask, tmp_path):
    file = SPECS / "train_and_export.yaml"
    _, lines = ask("--pipeline", str(file))
    assert "ok       models: export-model exports to minio://mlpipeline/models, because it names no bucket" in lines
    spec = yaml.safe_load(file.read_text())
    spec["root"]["inputDefinitions"]["parameters"]["bucket"]["defaultValue"] = "team-models"
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump(spec))
    _, lines = ask("--pipeline", str(tmp_path / "pipeline.yaml"))
    bucket = "warning  bucket of export-model: s3://team-models was not checked, because"
    assert [line.partition(" because")[0] + " because" for line in lines if "models" in line] == [bucket]


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_a_store_that_is_not_reached_is_asked_once(ask, tmp_path, monkeypatch, variable):
    spec = yaml.safe_load((SPECS / "train_and_export.yaml").read_text())
    parameters = spec["root"]["inputDefinitions"]["parameters"]
    parameters["bucket"]["defaultValue"], parameters["source"]["defaultValue"] = "minio://models", "s3://data/rows.csv"
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump(spec))
    asked, create_connection = [], socket.create_connection

    def connect(address, **options):
        asked.append(address)
        return create_connection(address, **options)

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(MadeUp, "keys", {"accesskey": "YQ==", "secretkey": "YQ=="})
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    _, lines = ask("--pipeline", str(tmp_path / "pipeline.yaml"))
    assert f"         -> correct or unset {variable}" in lines
    unchecked = [line for line in lines if "was not checked, because its store is not reached" in line]
    assert {line.split(":")[0] for line in unchecked} > {"warning  bucket of export-model"}
    assert len(asked) == 1


TRAIN_JOBS = {"/apis/trainer.kubeflow.org/v1alpha1": ["trainjobs", "trainingruntimes"]}
PREFERS = "the cluster serves TFJob and TrainJob, and auto prefers TFJob"


@pytest.mark.parametrize(
    ("served", "refused", "choice", "fault"),
    [
        (SERVED | TRAIN_JOBS, [], f"ok       operator of TF: auto takes training-operator: {PREFERS}", ""),
        (
            SERVED | TRAIN_JOBS,
            ["create tfjobs"],
            "ok       operator of TF: auto takes trainer: the cluster serves TFJob and TrainJob, and the account lacks "
            "create tfjobs.kubeflow.org",
            "",
        ),
        (
            SERVED | TRAIN_JOBS,
            ["create tfjobs", "create trainjobs"],
            "warning  operator of TF: the account may use neither TFJob nor TrainJob; with permissions, auto takes "
            f"training-operator: {PREFERS}",
            "create tfjobs.kubeflow.org",
        ),
        (
            {"/apis/batch/v1": ["jobs"], "/apis/kubeflow.org/v1": [], "/apis/kubeflow.org/v2beta1": []} | TRAIN_JOBS,
            ["patch trainingruntimes"],
            "ok       operator of TF: auto takes trainer: the cluster serves TrainJob and not TFJob",
            "patch trainingruntimes.trainer.kubeflow.org",
        ),
    ],
)
def test_the_operator_that_auto_takes_and_its_permissions(ask, monkeypatch, served, refused, choice, fault):
    monkeypatch.setattr(MadeUp, "served", served)
    _, lines = ask("--distribution", '{"distribution_type": "TF"}', refused=refused)
    assert [line for line in lines if " operator of " in line] == [choice]
    (permissions,) = [line for line in lines if " permissions: " in line]
    assert permissions == (
        f"failed   permissions: ann may not, in default: {fault}"
        if fault
        else "ok       permissions: ann has all permissions that a train step needs in default"
    )
    controllers = {line[9:].partition(":")[0] for line in lines} & {"training-operator", "kubeflow-trainer", "jobset"}
    assert controllers == ({"training-operator"} if "training-operator:" in choice else {"kubeflow-trainer", "jobset"})


@pytest.mark.parametrize(
    ("distribution", "served", "problem"),
    [
        (
            {"distribution_type": "MPI", "number_of_workers": 2, "min_workers": 1, "operator": "trainer"},
            SERVED,
            "min_workers = 1: elastic training requires MPIJob v1 of the training operator, but a TrainJob of Kubeflow "
            "Trainer has a fixed number of workers; remove min_workers and max_workers",
        ),
        (
            {"distribution_type": "PyTorch", "number_of_workers": 2, "max_workers": 4, "operator": "trainer"},
            SERVED,
            "max_workers = 4 is more than number_of_workers, 2: a TrainJob of Kubeflow Trainer cannot get more workers "
            "while it runs; set number_of_workers to 4, or max_workers to 2",
        ),
        (
            {"distribution_type": "TF", "gang_scheduling": True},
            {"/apis/batch/v1": ["jobs"], "/apis/kubeflow.org/v1": [], "/apis/kubeflow.org/v2beta1": []},
            "gang_scheduling = true: Kubeflow Trainer does not name the gang scheduler; set scheduler_name to "
            '"volcano", or to the name of a scheduler with the coscheduling plugin',
        ),
        (
            {"distribution_type": "MPI", "number_of_workers": 2, "min_workers": 1, "operator": "training-operator"},
            {"/apis/batch/v1": ["jobs"], "/apis/kubeflow.org/v1": [], "/apis/kubeflow.org/v2beta1": ["mpijobs"]},
            "min_workers = 1: elastic training requires MPIJob v1 of the training operator, but this cluster serves "
            "v2beta1; remove min_workers and max_workers",
        ),
        ({"distribution_type": "TF", "gang_scheduling": True}, SERVED, ""),
        ({"distribution_type": "PyTorch", "min_workers": 1, "operator": "trainer"}, SERVED, ""),
    ],
)
def test_a_key_that_the_operator_cannot_honor_fails(ask, monkeypatch, distribution, served, problem):
    monkeypatch.setattr(MadeUp, "served", served | TRAIN_JOBS)
    code, lines = ask("--distribution", json.dumps(distribution), "--image", "fit:1")
    found = [line for line in lines if " distribution_specification: " in line]
    assert found == ([f"failed   distribution_specification: {problem}"] if problem else [])
    assert code == 1


KSERVE = {
    "/apis/serving.kserve.io/v1alpha1": ["servingruntimes"],
    "/apis/serving.kserve.io/v1beta1": ["inferenceservices"],
}


@pytest.mark.parametrize(
    ("served", "refused", "found"),
    [
        (
            SERVED,
            ["create inferenceservices"],
            ["ok       InferenceService: not served; only deploy_model needs KServe"],
        ),
        (
            SERVED | KSERVE,
            [],
            [
                "ok       InferenceService: served as serving.kserve.io/v1beta1",
                "ok       permissions of deploy_model: ann has all permissions that deploy_model needs in default",
            ],
        ),
        (
            SERVED | KSERVE,
            ["create inferenceservices", "watch inferenceservices"],
            [
                "ok       InferenceService: served as serving.kserve.io/v1beta1",
                "warning  permissions of deploy_model: ann may not, in default: create, watch "
                "inferenceservices.serving.kserve.io",
            ],
        ),
    ],
)
def test_what_deploy_model_needs(ask, monkeypatch, served, refused, found):
    monkeypatch.setattr(MadeUp, "served", served)
    _, lines = ask(refused=refused)
    assert [line for line in lines if "InferenceService" in line or "deploy_model:" in line] == found
    if refused and len(found) > 1:
        fix = lines[lines.index(found[1]) + 1]
        assert fix.startswith("         -> kfp-distributed install --namespace default --deploy && kubectl create ")
