"""predict with workers in pods, of which one is deleted."""

import json
import os
import subprocess
import sys
import uuid
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from cluster.jobs import Step, left_behind
from cluster.test_replica_faults import delete
from prediction_models import linear_network, save_onnx

from kfp_distributed.components.kfp_interface.delivery import IMAGE_VARIABLE
from kfp_distributed.components.predict.prediction import run_prediction
from kfp_distributed.components.predict.prediction_pods.prediction_job import prediction_folder
from kfp_distributed.components.predict.prediction_request import parse_request
from kfp_distributed.components.train.run.identity import identify_training
from kfp_distributed.components.train.run.training_request.request import job_name
from kfp_distributed.storage import credentials_from_environment, open_store
from kfp_distributed.storage.dataset import Column, Label
from kfp_distributed.trainers.onnx_inputs import with_column_inputs

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), pytest.mark.takes(60)]

_PROGRAM = Path(__file__).parent / "programs" / "predict_step.py"
_ROWS = 400_000
_COLUMNS = tuple(Column(f"x{number}", "number", "float32", fill=0.0) for number in range(20))
_PARAMETERS = {"key_columns": ["id"], "csv_format": {}, "on_bad_row": "refuse", "probabilities": True}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Folder with a model, and a table of some 150 MB, which are several chunks."""
    folder = tmp_path_factory.mktemp("files")
    network = with_column_inputs(linear_network([0] * 20, 3), _COLUMNS, has_unknown=False)
    label = asdict(Label("kind", ("a", "b", "c")))
    save_onnx(folder / "model", network, columns=tuple(map(asdict, _COLUMNS)), label=label)
    generator = np.random.default_rng(0)
    table = {"id": np.arange(_ROWS), **{column.name: generator.normal(size=_ROWS) for column in _COLUMNS}}
    pyarrow.csv.write_csv(pa.table(table), folder / "rows.csv")
    return folder


def predicted_here(files, folder):
    request = parse_request(
        model=(str(files / "model"), ""), model_uri="", dataset=None, source=str(files / "rows.csv"), **_PARAMETERS
    )
    run_prediction(request, SimpleNamespace(path=str(folder), uri="", metadata={}))
    return pq.read_table(sorted(folder.glob("*.parquet")))


def test_pods_predict_what_one_process_does_though_one_is_deleted(
    files, tmp_path, api, bucket, store_environment, training_namespace, image_name
):
    account = credentials_from_environment(store_environment)
    store = open_store(f"s3://{bucket}/predicted", account)
    store.upload_folder(files)
    uri = f"s3://{bucket}/v2/artifacts/flowers/{uuid.uuid4()}/predict/{uuid.uuid4()}/predictions"
    request = {
        "namespace": training_namespace,
        "predictions": uri,
        "path": str(tmp_path / "predictions"),
        "model_uri": f"{store.uri}/model",
        "workers": 2,
        "settings": {"worker_memory": "1Gi"},
        "parameters": {**_PARAMETERS, "source": f"{store.uri}/rows.csv"},
        "distribution_specification": {},
    }
    process = subprocess.Popen(
        [sys.executable, str(_PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **store_environment, IMAGE_VARIABLE: image_name("evaluate")},
    )
    process.stdin.write(json.dumps(request))
    process.stdin.close()
    identity = identify_training(uri, {}, print)
    name = job_name(identity.task_name, (identity.run_id, *identity.distinction))
    step = Step(process, name, training_namespace, request)
    try:
        step.wait_for(r"\[scheduler-0\] all 2 workers are there", 300)
        delete(api, training_namespace, step.pod_of("worker-1"))
        assert step.verdict(300) == {"error": "", "rows": _ROWS}, step.timed_log
    finally:
        step.process.terminate()
        step.end()
    assert left_behind(step) == []
    assert open_store(prediction_folder(uri), account).list() == []
    found = pq.read_table(sorted((tmp_path / "predictions").glob("*.parquet")))
    assert found.equals(predicted_here(files, tmp_path / "here"))
