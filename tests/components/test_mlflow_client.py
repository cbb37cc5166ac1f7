"""Client of the MLflow REST API. tests/train/test_mlflow.py has the tests with a real server."""

import pytest

from kfp_distributed.components.external_services import mlflow_client
from kfp_distributed.components.external_services.mlflow_client import read_connection, valid_key

HOST = "https://mlflow.example.com"


@pytest.mark.parametrize(
    ("variables", "address", "headers"),
    [
        ({"MLFLOW_TRACKING_URI": f"{HOST}/prefix/"}, f"{HOST}/prefix", {}),
        ({"MLFLOW_TRACKING_URI": f"https://me:p%40ss@{HOST[8:]}"}, HOST, {"Authorization": "Basic bWU6cEBzcw=="}),
        (
            {
                "MLFLOW_TRACKING_URI": HOST,
                "MLFLOW_TRACKING_USERNAME": "me",
                "MLFLOW_TRACKING_PASSWORD": "p\u00fc",
                "MLFLOW_TRACKING_TOKEN": "unused",
            },
            HOST,
            {"Authorization": "Basic bWU6cMO8"},
        ),
        (
            {"MLFLOW_TRACKING_URI": HOST, "MLFLOW_TRACKING_TOKEN": "secret-token", "MLFLOW_WORKSPACE": "team"},
            HOST,
            {"Authorization": "Bearer secret-token", "X-MLFLOW-WORKSPACE": "team"},
        ),
        (
            {"MLFLOW_TRACKING_URI": HOST, "MLFLOW_TRACKING_AUTH": "kubernetes"},
            HOST,
            {"Authorization": "Bearer of the pod"},
        ),
        (
            {"MLFLOW_TRACKING_URI": HOST, "MLFLOW_TRACKING_AUTH": "kubernetes-namespaced"},
            HOST,
            {"Authorization": "Bearer of the pod", "X-MLFLOW-WORKSPACE": "kubeflow-user"},
        ),
    ],
)
def test_a_connection_is_read_from_the_variables_of_mlflow(tmp_path, monkeypatch, variables, address, headers):
    (tmp_path / "token").write_text("of the pod\n")
    (tmp_path / "namespace").write_text("kubeflow-user")
    monkeypatch.setattr(mlflow_client, "SERVICE_ACCOUNT", tmp_path)
    connection = read_connection(variables)
    assert (connection.address, connection.headers()) == (address, headers)
    assert not any(secret in repr(connection) for secret in ("bWU6cEBzcw==", "bWU6cMO8", "secret-token"))


@pytest.mark.parametrize(
    "variables",
    [
        # urllib's messages for these addresses have the password, and http.client's message has the header.
        {"MLFLOW_TRACKING_URI": "http://me:secret\u2100@host"},
        {"MLFLOW_TRACKING_URI": "http://me:[secret]@host"},
        {"MLFLOW_TRACKING_URI": HOST, "MLFLOW_TRACKING_TOKEN": "first\nsecret"},
        {"MLFLOW_TRACKING_URI": HOST, "MLFLOW_TRACKING_TOKEN": "secret\u2100"},
    ],
)
def test_an_error_names_the_variable_and_not_its_value(variables):
    with pytest.raises(ValueError, match=list(variables)[-1]) as error:
        read_connection(variables)
    assert "secret" not in str(error.value)


def test_keys_have_no_characters_that_mlflow_refuses():
    assert valid_key("training/top-5 (val): \u00e4" + "x" * 300) == ("training/top-5 _val__ \u00e4" + "x" * 300)[:250]
    assert valid_key("training/loss//mean/") == "training/loss/mean"
