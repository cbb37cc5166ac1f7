"""The `tune` step with a real MLflow server: a run for the search, and one below it for each trial."""

import pytest
from mlflow_server import mlflow_server

pytestmark = pytest.mark.takes(40)

JOB, PARENT = "kfp_distributed.job", "mlflow.parentRunId"


@pytest.fixture
def runs(tmp_path):
    """Variables of a step, and a function that returns the runs of the server: their tags, states and metrics."""
    (tmp_path / "mlflow").mkdir()
    with mlflow_server(tmp_path / "mlflow") as server:

        def read():
            query = {"experiment_ids": ["0"], "order_by": ["attributes.start_time"]}
            found = server.request("POST", "mlflow/runs/search", query)["runs"]
            for run in found:
                run["tags"] = {tag["key"]: tag["value"] for tag in run["data"]["tags"]}
                run["metrics"] = {metric["key"]: metric["value"] for metric in run["data"].get("metrics", ())}
            return found

        yield server, read


@pytest.mark.parametrize("is_of_kfp", [False, True], ids=["own run", "run of KFP"])
def test_the_run_of_a_trial_is_below_that_of_the_search(step, runs, is_of_kfp):
    server, read = runs
    variables = server.variables(MLFLOW_EXPERIMENT_ID="0")
    if is_of_kfp:
        begun = server.request(
            "POST", "mlflow/runs/create", {"experiment_id": "0", "run_name": "tune", "start_time": 1}
        )
        variables["MLFLOW_RUN_ID"] = begun["run"]["info"]["run_id"]
    code, output, found = step.run(variables=variables, trials=2)
    assert code == 0, output
    parent, *trials = read()
    run_id = parent["info"]["run_id"]
    assert [run["tags"][PARENT] for run in trials] == [run_id] * 2
    assert parent["tags"][JOB].startswith("tune-")
    assert {run["tags"][JOB][:7] for run in trials} == {"tune-0-", "tune-1-"}
    assert {run["info"]["status"] for run in trials} == {"FINISHED"}
    assert parent["info"]["status"] == ("RUNNING" if is_of_kfp else "FINISHED"), "KFP ends its runs"
    losses = {run["tags"][JOB]: run["metrics"]["training/loss"] for run in trials}
    assert min(losses.values()) == pytest.approx(found[2])
    assert parent["metrics"]["training/loss"] in losses.values()
    assert found[-1]["model"]["mlflow_run_id"] == run_id
