"""Rows that several workers predict: processes of this machine, and those of a cluster that sees only the store."""

from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from dask_processes import start_cluster
from kfp import dsl

from kfp_distributed.components.predict.prediction import run_prediction
from kfp_distributed.components.predict.prediction_request import parse_request
from kfp_distributed.components.predict.reading import source_rows
from kfp_distributed.components.predict.step import run_step
from kfp_distributed.components.worker_pool.dask_engine import DaskEngine
from kfp_distributed.processes import ProcessGroup
from kfp_distributed.storage.model import ModelIncomplete
from kfp_distributed.storage.object_stores.embedded import embedded_object_store
from kfp_distributed.storage.opener import open_store

pytestmark = pytest.mark.takes(16)

ROOT = "s3://pipelines/v2/artifacts/flowers/8f3c1d7e-2f3a-4b5c-9d6e-7f8091a2b3c4/predict/51b25a3c-7d1e-4f2a-8b6c-0d9e8f7a6b5c"
ROWS = 400
PARAMETERS = {"key_columns": ["id"], "csv_format": {}, "on_bad_row": "skip", "probabilities": True}


@pytest.fixture
def source(tmp_path):
    """A table of several chunks, with a row that cannot be used in the second of them."""
    rows = [f"k{number},{'x' if number == 300 else number / 8},{'ab'[number % 2]}" for number in range(ROWS)]
    path = tmp_path / "source" / "rows.csv"
    path.parent.mkdir()
    path.write_text("id,x,label\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture
def model(prepared, model_of, source):
    return model_of(
        prepared(source, columns={"x": "number"}, drop_columns=["id"], on_bad_row="skip", label_column="label")
    )


@pytest.fixture
def chunks(monkeypatch):
    """Divide a small source into several chunks, whose tasks run in other processes."""
    monkeypatch.setattr(source_rows, "CHUNK_BYTES", 2**11)


@pytest.mark.usefixtures("chunks")
def test_processes_give_the_same_predictions_in_the_same_order(source, model, predicted, refused, capsys):
    parameters = {"model": model, "source": str(source), **PARAMETERS}
    alone = predicted(**parameters)
    assert alone.rows == ROWS - 1
    capsys.readouterr()
    shared = predicted(**parameters, distribution_specification={"number_of_workers": 2.0})
    assert shared.table().equals(alone.table())
    assert shared.manifest == alone.manifest
    assert "2 processes of this machine" in capsys.readouterr().out
    assert [*source.parents[1].glob(".workers-*")] == []


def test_wrong_rows_and_settings_are_refused_as_without_workers(tmp_path, source, model, refused):
    parameters = {"model": model, "source": str(source), **PARAMETERS, "on_bad_row": "refuse"}
    workers = {"number_of_workers": 2}
    assert refused(**parameters, distribution_specification=workers) == refused(**parameters)
    assert "row 302" in refused(**parameters)
    assert "worker_gpus = 1" in refused(**parameters, distribution_specification={**workers, "worker_gpus": 1})
    memory = {**workers, "worker_gpu_memory": "80Gi"}
    assert "worker_gpu_memory = '80Gi'" in refused(**parameters, distribution_specification=memory)
    assert "number_of_workers is 0" in refused(**parameters, distribution_specification={"worker_cpus": 1})


@pytest.mark.usefixtures("chunks")
def test_workers_of_other_machines_take_the_model_and_the_rows_from_the_store(
    tmp_path, source, model, predicted, monkeypatch
):
    alone = predicted(model=model, source=str(source), **PARAMETERS)
    with embedded_object_store(tmp_path / "objects") as server, ProcessGroup() as processes:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        store = open_store("s3://pipelines")
        store.make_bucket()
        store.upload_folder(model, "model")
        store.upload(source, "rows.csv")
        address = start_cluster(processes, tmp_path / "dask")
        engine = DaskEngine("s3://pipelines/scratch", scheduler=address)
        output = dsl.Artifact(uri=str(tmp_path / "elsewhere"))

        def run(model=None, dataset=None, **addresses):
            values = {"model_uri": "s3://pipelines/model", "source": "s3://pipelines/rows.csv", **addresses}
            return run_prediction(parse_request(model=model, dataset=dataset, **values, **PARAMETERS), output, engine)

        assert run() == alone.rows
        store.upload(model / "model.onnx", "artifact/model.onnx")
        # Without model.json, the address of an artifact is enough, and any other address is not.
        assert run(model=("", "s3://pipelines/artifact"), model_uri="") == alone.rows
        assert pq.read_table(sorted(Path(output.path).glob("*.parquet")))["probability"].equals(
            alone.table()["probability"]
        )
        with pytest.raises(ModelIncomplete, match=r"has no model\.json"):
            run(model_uri="s3://pipelines/artifact")
        with pytest.raises(ModelIncomplete, match=r"none of the files model\.onnx"):
            run(model=("", "s3://pipelines/nothing"), model_uri="")
        assert run() == alone.rows
        assert store.list("scratch") == []
        stored = SimpleNamespace(path=str(tmp_path / "of-step"), uri=f"{ROOT}/predictions", metadata={})
        addresses = {"model_uri": "s3://pipelines/model", "source": "s3://pipelines/rows.csv"}
        workers = {"dask_scheduler": address}
        step = run_step(
            predictions=stored, model=None, dataset=None, **addresses, distribution_specification=workers, **PARAMETERS
        )
        assert step.rows == alone.rows
        for wrong in (
            {"source": str(source)},
            {"model_uri": str(model)},
            {"source": "https://example.com/rows.csv"},
            {"dataset": str(tmp_path / "data" / "train"), "source": ""},
        ):
            with pytest.raises(ValueError, match="this machine"):
                run(**wrong)
    parts = sorted(Path(output.path).glob("*.parquet"))
    assert pq.read_table(parts).equals(alone.table())
