"""The example that fine-tunes a language model by trl, on two ranks, and the callback that stores its metrics."""

import json
import os
import re
import subprocess
import tempfile
from types import SimpleNamespace

import make_tiny_llama
import pytest
from environments import environment
from fine_tuning import fine_tuning
from forked_replicas import forked
from make_messages_csv import write_messages
from step_lines import into

from kfp_distributed.components import prepare_data
from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.trainers import train_specification

pytestmark = pytest.mark.takes(20)

STEPS = (4, 12)
"""Steps of the first training, and with those of the training that resumes from its checkpoint: 4 for each epoch."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with the splits of 160 messages, and with tiny-llama."""
    folder = tmp_path_factory.mktemp("messages")
    write_messages(folder / "messages.csv", 160)
    names = ("train_dataset", "validation_dataset", "test_dataset", "overview")
    outputs = {name: SimpleNamespace(path=str(folder / name), uri=str(folder / name), metadata={}) for name in names}
    prepare_data.python_func(
        **outputs,
        source=str(folder / "messages.csv"),
        label_column="",
        columns={"message": "text", "team": "text"},
        split={"validation_fraction": 0.2, "test_fraction": 0},
    )
    program = [make_tiny_llama.__file__, folder / "messages.csv", folder / "tiny-llama"]
    subprocess.run(forked(environment("torch2"), *program), check=True)
    return folder


def train(folder, epochs):
    """Train an adapter; return the outcome, the log, and the working directory of the second rank."""
    request = Request(
        train_uri=str(folder / "train_dataset"),
        validation_uri=str(folder / "validation_dataset"),
        model_uri=str(folder / "model"),
        checkpoint_uri=str(folder / "checkpoints"),
        train_specification=train_specification(fine_tuning, rows="all"),
        train_parameters={
            "base_model": str(folder / "tiny-llama"),
            "prompt_column": "message",
            "completion_column": "team",
            "epochs": epochs,
            "checkpoint_steps": 2,
            "learning_rate": 1e-2,
        },
        distribution_specification={"distribution_type": "PyTorch", "number_of_workers": 1, "keep_job": True},
        identity=(str(folder),),
    )
    lines = []
    (folder / f"jobs-{epochs}").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KFP_DISTRIBUTED_PYTORCH_PYTHON", str(environment("torch2")))
        patch.setattr(tempfile, "tempdir", str(folder / f"jobs-{epochs}"))
        outcome = launch(request, LocalRunner(), into(lines))
    return outcome, "\n".join(lines)


@pytest.fixture(scope="module")
def trained(folder):
    """Outcomes and logs of two trainings, of which the second one resumes from the checkpoint of the first one."""
    return [train(folder, steps // 4) for steps in STEPS]


def test_metrics_of_steps_are_kept_and_go_on_after_a_restart(trained):
    for (outcome, _), steps in zip(trained, STEPS, strict=True):
        rows = outcome.metrics["master-0"]
        assert [row["step"] for row in rows] == list(range(1, steps + 1))
        tokens = [row["tokens"] for row in rows]
        assert tokens == sorted(set(tokens))
        assert all(row["tokens_per_second"] > 0 for row in rows)
        assert [row["step"] for row in rows if "val_loss" in row] == list(range(2, steps + 1, 2))
    first, second = (outcome.metrics["master-0"] for outcome, _ in trained)
    assert [row["loss"] for row in second[:4]] == [row["loss"] for row in first]
    assert second[-1]["val_loss"] < second[3]["val_loss"] < second[1]["val_loss"]
    assert trained[1][0].model.metrics["val_loss"] == second[-1]["val_loss"]


TOKENS = """
import sys
from datasets import Dataset
from pathlib import Path
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
rows = Dataset.from_parquet(sorted(map(str, Path(sys.argv[2]).rglob("*.parquet"))), keep_in_memory=True)
counts = [len(tokenizer(row["message"] + row["team"] + tokenizer.eos_token)["input_ids"]) for row in rows]
print(len(counts), len(set(counts)), sum(counts))
"""


def test_each_row_is_trained_on_once_in_an_epoch(trained, folder):
    """Two ranks of 64 rows in 4 steps of 32. Ranks with the same rows would train on other numbers of tokens."""
    command = forked(environment("torch2"), "-c", TOKENS, folder / "tiny-llama", folder / "train_dataset")
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows, lengths, tokens = map(int, answer.splitlines()[-1].split())
    steps = trained[0][0].metrics["master-0"]
    assert len(steps) * 32 == rows == 128
    assert lengths > 5
    assert steps[-1]["tokens"] == tokens


def test_the_log_has_lines_of_progress_and_no_bars(trained):
    for _, log in trained:
        assert re.search(r"^\[master-0\] step \d+/\d+ loss=", log, re.MULTILINE)
        assert "it/s" not in log
        assert "examples/s" not in log
        assert "{'loss'" not in log


def test_each_stored_checkpoint_has_one_of_the_trainer(trained, folder):
    for manifest in sorted((folder / "checkpoints").glob("*/checkpoints/*.json")):
        paths = [entry["path"] for entry in json.loads(manifest.read_text())["files"]]
        assert len({path.partition("/")[0] for path in paths if "/" in path}) == 1
    assert f"checkpoint-{STEPS[-1]}/trainer_state.json" in paths


ANSWER = """
import json, sys
from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer
model, tokenizer = AutoPeftModelForCausalLM.from_pretrained(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[1])
tokens = tokenizer("Nobody told me that the invoice depends on the refund.", return_tensors="pt")
print(json.dumps(tokenizer.decode(model.generate(**tokens, max_new_tokens=3)[0])))
"""


def test_peft_loads_the_saved_adapter(trained, folder):
    command = forked(environment("torch2"), "-c", ANSWER, folder / "model")
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert json.loads(answer.splitlines()[-1]).startswith("Nobody told me")


ENDING = """
import json, os, sys
from pathlib import Path
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from kfp_distributed.trainers import hugging_face
from kfp_distributed.trainers.runtime.lifecycle.termination import EndedEarly

asked, stored, flush = [], [], hugging_face.flush
hugging_face.is_ending = lambda: asked.append(1) or len(asked) == 3
hugging_face.flush = lambda: stored.append(sorted(os.listdir("checkpoints"))) or flush()
hugging_face.commit = lambda: stored.append("commit")
rows = [{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}] * 40
options = {"max_steps": 9, "logging_steps": 2, "save_steps": 4, "eval_steps": 3, **json.loads(sys.argv[2])}
arguments = TrainingArguments(
    "checkpoints", per_device_train_batch_size=2, use_cpu=True, eval_strategy="steps", report_to="none",
    include_num_input_tokens_seen=True, **options,
)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows)
trainer.add_callback(hugging_face.StoredMetrics(trainer, "."))
try:
    trainer.train()
except EndedEarly as error:
    steps = json.loads(Path("training.json").read_text())["steps"]
    steps = [[row["step"], row["tokens"]] for row in steps]
    kept = sorted(os.listdir("checkpoints"))
    print(json.dumps({"code": error.code, "asked": len(asked), "stored": stored, "steps": steps, "kept": kept}))
"""


@pytest.fixture
def ended(folder, tmp_path, library_archive):
    """A function that ends a training after three steps, and returns what its program has printed."""

    def train(**options):
        command = forked(environment("torch2"), "-c", ENDING, folder / "tiny-llama", json.dumps(options))
        variables = {**os.environ, "PYTHONPATH": str(library_archive)}
        process = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, env=variables)
        assert process.returncode == 0, process.stderr
        return json.loads(process.stdout.splitlines()[-1])

    return train


def test_a_trainer_ends_with_a_checkpoint_when_a_replica_must_end(ended):
    assert ended() == {
        "code": 145,
        "asked": 3,
        "stored": ["commit", ["checkpoint-3"]],
        "steps": [[2, 12], [3, 18]],
        "kept": ["checkpoint-3"],
    }


def test_a_trainer_that_ends_keeps_its_newest_checkpoint_beside_the_best_one(ended):
    """The first evaluation is the best one here, as the loss falls."""
    found = ended(eval_steps=1, save_steps=1, metric_for_best_model="loss", greater_is_better=True)
    assert found["stored"][-1] == found["kept"] == ["checkpoint-1", "checkpoint-3"]


DIVERGING = """
import json, sys
from contextlib import suppress
from pathlib import Path
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from kfp_distributed.trainers import hugging_face
from kfp_distributed.trainers.language_training.tuning_updates import EndIfDiverged

rows = [{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}] * 2
arguments = TrainingArguments(
    "checkpoints", per_device_train_batch_size=2, use_cpu=True, eval_strategy="steps", report_to="none",
    max_steps=1, logging_steps=1, eval_steps=1, save_strategy="no", logging_nan_inf_filter=False,
)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
model.lm_head.weight.data.fill_(float("nan"))
trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows)
trainer.add_callback(hugging_face.StoredMetrics(trainer, "."))
trainer.add_callback(EndIfDiverged())
with suppress(SystemExit):
    trainer.train()
hugging_face.flush()
(step,) = json.loads(Path("training.json").read_text())["steps"]
print(step["step"], step["loss"])
"""


def test_a_last_step_that_diverges_is_recorded(folder, tmp_path, library_archive):
    """Metrics of other last steps wait for those of their evaluation."""
    command = forked(environment("torch2"), "-c", DIVERGING, folder / "tiny-llama")
    variables = {**os.environ, "PYTHONPATH": str(library_archive)}
    process = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, env=variables)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1] == "1 nan"
