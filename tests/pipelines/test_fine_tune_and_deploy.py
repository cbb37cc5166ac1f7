"""The pipeline for language models, whole: real data, a real training and evaluation, a real server."""

import json
import subprocess
from urllib.request import Request, urlopen

import make_tiny_llama
import pytest
from environments import environment
from forked_replicas import forked

from kfp_distributed.pipelines.fine_tune_and_deploy import fine_tune_and_deploy
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.storage import open_store
from kfp_distributed.storage.model import ModelManifest

TWO_RANKS = {"distribution_type": "PyTorch", "number_of_workers": 1}

pytestmark = pytest.mark.takes(40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with conversations, and with tiny-llama."""
    folder = tmp_path_factory.mktemp("chats")
    rows = [
        {"messages": [{"role": "user", "content": f"What is {n}?"}, {"role": "assistant", "content": f"{n % 3}"}]}
        for n in range(60)
    ]
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "texts.csv").write_text("message,team\n" + "".join(f"What is {n}?,{n % 3}\n" for n in range(60)))
    program = [make_tiny_llama.__file__, folder / "texts.csv", folder / "tiny-llama"]
    subprocess.run(forked(environment("torch2"), *program), check=True)
    return folder


def test_a_model_is_tuned_evaluated_exported_and_asked(folder, tmp_path, monkeypatch):
    for kind in ("LANGUAGE_MODEL", "PYTORCH"):
        monkeypatch.setenv(f"KFP_DISTRIBUTED_{kind}_PYTHON", str(environment("torch2")))
    inputs = {
        "source": str(folder / "chats.jsonl"),
        "base_model": str(folder / "tiny-llama"),
        "base_model_copy": "s3://bases/tiny-llama",
        "batch_size": 8,
        "learning_rate": 0.01,
        "max_length": 128,
        "bucket": "models",
    }
    with local_run(tmp_path) as run:
        for bucket in ("bases", "models"):
            open_store(f"s3://{bucket}").make_bucket()
        fine_tune_and_deploy(**inputs, distribution_specification=TWO_RANKS)
        (tasks,) = [path for path in run.artifacts.iterdir() if path.name.startswith("fine-tune-and-deploy")]
        deployed = json.loads((tasks / "deploy-model" / "deployment").read_text())
        assert (deployed["version"], deployed["format"], deployed["mode"]) == (1, "huggingface", "local")
        question = {"model": "assistant", "messages": [{"role": "user", "content": "What is 7?"}], "max_tokens": 5}
        request = Request(f"{deployed['url']}/openai/v1/chat/completions", json.dumps(question).encode())
        with urlopen(request) as answer:
            assert json.loads(answer.read())["usage"]["completion_tokens"] <= 5
        exported = ModelManifest.from_json(open_store("s3://models/assistant/1").read("model.json"))
        assert exported.base["base_model"] == "s3://bases/tiny-llama"
    scored = json.loads((tasks / "evaluate-language-model" / "executor_output.json").read_text())["parameterValues"]
    assert 0 < scored["score"] < 10
    with local_run(tmp_path / "worse") as run:
        for bucket in ("bases", "models"):
            open_store(f"s3://{bucket}").make_bucket()
        fine_tune_and_deploy(**inputs, bound=0.001)
    (tasks,) = [path for path in run.artifacts.iterdir() if path.name.startswith("fine-tune-and-deploy")]
    assert not (tasks / "export-model").exists()
    assert not (tasks / "deploy-model").exists()
