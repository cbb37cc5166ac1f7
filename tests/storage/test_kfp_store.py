"""Finding the object store of Kubeflow Pipelines, with objects of a fake Kubernetes API."""

import re
from dataclasses import replace

import pytest
import yaml

from kfp_distributed.cluster_api.reader import MayNotRead
from kfp_distributed.storage.kubeflow.kfp_store import (
    StoreReference,
    environment_entries,
    find_object_store,
    find_service,
    read_credentials,
)

_PATH = "/api/v1/namespaces/{}/{}/{}".format
SECRET = _PATH("team", "secrets", "mlpipeline-minio-artifact")
INSTALLED = StoreReference("minio-service.kubeflow:9000", "mlpipeline-minio-artifact", "team")
SET = "set AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or KFP_DISTRIBUTED_OBJECT_STORE_SECRET"


class Cluster(dict):
    """Objects by path. Paths that start with an entry of `forbidden` may not be read."""

    forbidden = ()

    def read(self, path):
        if path.startswith(tuple(self.forbidden)):
            raise MayNotRead(path)
        return self.get(path)


def service(namespace, name):
    return {_PATH(namespace, "services", name): {}}


def launcher(providers, **data):
    text = providers if isinstance(providers, str) else yaml.safe_dump(providers)
    return {_PATH("team", "configmaps", "kfp-launcher"): {"data": {"providers": text, **data}}}


def keys_in(secret):
    return {"secretRef": {"secretName": secret, "accessKeyKey": "id", "secretKeyKey": "key"}}


@pytest.mark.parametrize(
    ("services", "endpoint"),
    [
        ([("team", "seaweedfs"), ("team", "minio-service"), ("kubeflow", "seaweedfs")], "seaweedfs.team:9000"),
        ([("team", "minio-service"), ("kubeflow", "seaweedfs")], "minio-service.team:9000"),
        ([("kubeflow", "minio-service"), ("kubeflow", "seaweedfs")], "seaweedfs.kubeflow:9000"),
        ([("kubeflow", "minio-service")], "minio-service.kubeflow:9000"),
    ],
)
@pytest.mark.parametrize("extra", [{}, launcher(""), launcher({"minio": {}, "s3": None})], ids=str)
def test_default_store_of_the_installation(services, endpoint, extra):
    cluster = Cluster({SECRET: {}}, **extra)
    for namespace_and_name in services:
        cluster |= service(*namespace_and_name)
    cluster = Cluster(cluster)
    for uri in ("", "minio://mlpipeline/v2/artifacts/x", "s3://models", "/local/path"):
        assert find_object_store(cluster.read, "team", uri) == replace(INSTALLED, endpoint=endpoint)


def ports(*numbers):
    return {"spec": {"ports": [{"port": number} for number in numbers]}}


@pytest.mark.parametrize(
    ("services", "endpoint"),
    [
        # KFP 2.15: the Service seaweedfs does not have the port of the launcher, minio-service does.
        ({"seaweedfs": ports(8111, 8333, 9333), "minio-service": ports(9000)}, "minio-service.kubeflow:9000"),
        # Since KFP 2.16 there is no minio-service.
        ({"seaweedfs": ports(8111, 8333, 9000)}, "seaweedfs.kubeflow:9000"),
        # An upgraded installation still has it.
        ({"seaweedfs": ports(8333, 9000), "minio-service": ports(9000)}, "seaweedfs.kubeflow:9000"),
    ],
)
def test_the_service_with_the_port_of_the_launcher_is_used(services, endpoint):
    cluster = Cluster({_PATH("kubeflow", "services", name): service for name, service in services.items()})
    assert find_service(cluster.read, "team") == endpoint


def test_a_service_without_the_port_of_the_launcher_is_an_error():
    cluster = Cluster({_PATH("kubeflow", "services", "seaweedfs"): ports(8333)})
    with pytest.raises(ValueError, match=r"no Service .* has port 9000 .*seaweedfs\.kubeflow"):
        find_service(cluster.read, "team")


@pytest.mark.parametrize(
    ("names", "endpoint"),
    [
        ({"minio-service.kubeflow", "seaweedfs.kubeflow"}, "minio-service.kubeflow:9000"),  # KFP 2.15.
        ({"seaweedfs.kubeflow"}, "seaweedfs.kubeflow:9000"),  # Since KFP 2.16.
        (set(), "minio-service.kubeflow:9000"),  # Outside of the cluster.
    ],
)
def test_a_service_of_a_forbidden_namespace_is_chosen_by_its_name_in_dns(names, endpoint):
    cluster = Cluster()
    cluster.forbidden = ["/api/v1/namespaces/kubeflow/"]
    assert find_service(cluster.read, "team", names.__contains__) == endpoint


def test_namespace_kubeflow_is_forbidden():
    cluster = Cluster({SECRET: {}})
    cluster.forbidden = ["/api/v1/namespaces/kubeflow/"]
    assert find_object_store(cluster.read, "team") == INSTALLED
    cluster |= service("team", "seaweedfs")
    assert find_object_store(cluster.read, "team").endpoint == "seaweedfs.team:9000"


def test_secret_that_only_the_kubelet_may_read_is_accepted():
    cluster = Cluster(service("kubeflow", "minio-service"))
    cluster.forbidden = [SECRET]
    assert find_object_store(cluster.read, "team") == INSTALLED


PROVIDERS = {
    "minio": {
        "default": {"endpoint": "store.team:9000", "region": "minio", "disableSSL": True, "credentials": keys_in("m")}
    },
    "s3": {
        "default": {"endpoint": "s3.amazonaws.com", "region": "eu-west-1", "credentials": keys_in("default")},
        "overrides": [
            {"bucketName": "b", "keyPrefix": "some/deep/", "credentials": keys_in("deep")},
            {"bucketName": "b", "keyPrefix": "/some", "region": "us-east-2", "credentials": keys_in("some")},
            {"bucketName": "c", "endpoint": "http://c:1", "region": "", "credentials": keys_in("c")},
            {"bucketName": "c", "credentials": keys_in("never reached")},
        ],
    },
}
MINIO = StoreReference("store.team:9000", "m", "team", "id", "key", region="minio")
S3 = StoreReference("s3.amazonaws.com", "default", "team", "id", "key", secure=True, region="eu-west-1")


@pytest.mark.parametrize(
    ("uri", "reference"),
    [
        ("minio://b/some/deep/x", MINIO),
        ("s3://other/some/deep", S3),
        ("s3://b/some/deep", replace(S3, secret="deep")),
        ("S3://b/some/deep/x?region=r", replace(S3, secret="deep")),
        ("s3://b/some/deeper", replace(S3, secret="some", region="us-east-2")),
        ("s3://b/somewhere", S3),
        ("s3://b", S3),
        ("s3://c/any", replace(S3, secret="c", endpoint="c:1", secure=False)),
        ("", MINIO),
    ],
)
def test_store_of_the_launcher_configuration(uri, reference):
    cluster = Cluster(launcher(PROVIDERS))
    for secret in ("m", "default", "deep", "some", "c"):
        cluster[_PATH("team", "secrets", secret)] = {}
    assert find_object_store(cluster.read, "team", uri) == reference


def test_default_address_is_the_pipeline_root():
    cluster = Cluster(
        launcher(PROVIDERS, defaultPipelineRoot="s3://b/some/root"), **{_PATH("team", "secrets", "some"): {}}
    )
    assert find_object_store(cluster.read, "team").secret == "some"


def test_override_without_a_default_and_with_the_other_spelling():
    override = {"bucketName": "b", "endpoint": "e:1", "disableSSL": True, "credentials": keys_in("x")}
    cluster = Cluster(launcher({"minio": {"Overrides": [override]}}), **{_PATH("team", "secrets", "x"): {}})
    assert find_object_store(cluster.read, "team", "s3://b/x") == StoreReference("e:1", "x", "team", "id", "key")


@pytest.mark.parametrize(
    ("providers", "uri", "message"),
    [
        ("minio: [", "", " minio://mlpipeline/v2/artifacts: while parsing"),
        ("minio", "", " minio://mlpipeline/v2/artifacts: "),
        (
            {"minio": {"default": {"endpoint": "e:1"}}},
            "minio://b",
            "provider minio has no credentials.secretRef with",
        ),
        (
            {"s3": {"default": {"credentials": {"fromEnv": True}}}},
            "s3://b",
            "provider s3 has no credentials.secretRef",
        ),
        (
            {"minio": {"default": {"endpoint": "ftp://e", "credentials": keys_in("m")}}},
            "minio://b",
            "endpoint 'ftp://e'",
        ),
        ("", "gs://bucket/x", " gs://bucket/x: 'gs://bucket' is not a storage address: use s3://"),
    ],
)
def test_invalid_launcher_configuration(providers, uri, message):
    with pytest.raises(ValueError, match=f"^ConfigMap team/kfp-launcher .*{re.escape(message)}") as error:
        find_object_store(Cluster(launcher(providers)).read, "team", uri)
    assert SET in str(error.value)


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        (
            {SECRET: {}},
            "no Service .*seaweedfs.team, minio-service.team, seaweedfs.kubeflow, minio-service.kubeflow",
        ),
        (
            service("team", "seaweedfs"),
            "Secret team/mlpipeline-minio-artifact .* does not exist.*kfp-distributed doctor",
        ),
        (launcher(PROVIDERS), "Secret team/m .* does not exist.*kfp-distributed doctor"),
    ],
)
def test_missing_service_or_secret_is_named(objects, message):
    with pytest.raises(ValueError, match=f"^{message}") as error:
        find_object_store(Cluster(objects).read, "team")
    assert SET in str(error.value)


def test_forbidden_launcher_configuration_is_not_a_missing_one():
    cluster = Cluster({SECRET: {}}, **service("team", "seaweedfs"))
    cluster.forbidden = [_PATH("team", "configmaps", "")]
    with pytest.raises(MayNotRead, match="configmaps/kfp-launcher"):
        find_object_store(cluster.read, "team")


def test_environment_entries():
    secret = {"name": "some"}
    assert environment_entries(replace(S3, secret="some")) == [
        {"name": "AWS_ENDPOINT_URL", "value": "https://s3.amazonaws.com"},
        {"name": "AWS_REGION", "value": "eu-west-1"},
        {"name": "AWS_ACCESS_KEY_ID", "valueFrom": {"secretKeyRef": secret | {"key": "id"}}},
        {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": {"secretKeyRef": secret | {"key": "key"}}},
    ]
    assert [entry["name"] for entry in environment_entries(INSTALLED)] == [
        "AWS_ENDPOINT_URL",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
    ]
    assert environment_entries(INSTALLED)[0]["value"] == "http://minio-service.kubeflow:9000"


def test_read_credentials():
    cluster = Cluster(
        {_PATH("team", "secrets", "default"): {"data": {"id": "bWU=", "key": "aHVzaA==", "more": "eA=="}}}
    )
    assert read_credentials(cluster.read, S3) == ["me", "hush"]
    with pytest.raises(
        ValueError, match=r"must have the fields \('accesskey', 'secretkey'\), it has \['id', 'key'"
    ) as error:
        read_credentials(cluster.read, replace(S3, access_key_field="accesskey", secret_key_field="secretkey"))
    assert "aHVzaA" not in str(error.value)
    cluster[_PATH("team", "secrets", "empty")] = {"data": {"id": "bWU=", "key": ""}}
    with pytest.raises(ValueError, match=r"secrets/empty has an empty key in the fields \('id', 'key'\)\. Correct it"):
        read_credentials(cluster.read, replace(S3, secret="empty"))
    with pytest.raises(ValueError, match=r"^/api/v1/namespaces/team/secrets/other does not exist\. Create it, or "):
        read_credentials(cluster.read, replace(S3, secret="other"))
