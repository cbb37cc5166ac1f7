"""`kfp-distributed doctor` where there is nothing to look at."""

import pytest
from click.testing import CliRunner

from kfp_distributed.cli.main import main

NOWHERE = """\
apiVersion: v1
kind: Config
current-context: nowhere
contexts: [{name: nowhere, context: {cluster: nowhere, user: nobody}}]
clusters: [{name: nowhere, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: nobody, user: {}}]
"""


def test_a_cluster_that_does_not_answer(tmp_path, monkeypatch):
    file = tmp_path / "kubeconfig"
    file.write_text(NOWHERE)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    found = CliRunner().invoke(main, ["doctor"])
    assert found.exit_code == 1
    first, mend = found.output.splitlines()
    assert first.startswith("failed   cluster: the API server http://127.0.0.1:1 does not answer: ")
    assert mend == "         -> kubectl cluster-info, with the same KUBECONFIG"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--distribution", '{"gpus": 1}'], "distribution_specification: 'gpus' = 1 is not a known key; did you mean "),
        (["--namespace", "Team_A"], "--namespace = 'Team_A' is not the name of a Kubernetes object: at most 63 of a-z"),
        (["--bucket", "bucket"], "--bucket 'bucket' is not in object storage: allowed are s3://bucket/key, minio://"),
        (["--bucket", "gs://bucket"], "'gs://bucket' is no address: allowed are s3://bucket/key, minio://"),
    ],
)
def test_a_wrong_argument(arguments, error):
    found = CliRunner().invoke(main, ["doctor", *arguments])
    assert found.exit_code == 2
    assert found.output.startswith(f"Error: {error}")
