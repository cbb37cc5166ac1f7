"""The steps of fine_tune_and_deploy in a pod, whose jobs run in pods with real keys: all but the deployment."""

import json
import re
import subprocess
import uuid

import make_tiny_llama
import pytest
from cluster.step_pods import StepContainer, image_of, logs_of
from cluster.test_compiled_steps import with_launcher
from compiled import Run, step_command
from environments import environment

from kfp_distributed.storage import credentials_from_environment, open_store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.takes(120)]


def test_a_model_is_imported_tuned_evaluated_and_exported(
    api, run_in_pod, bucket, store_environment, image_specs, image_name, tmp_path
):
    rows = [
        {"messages": [{"role": "user", "content": f"What is {n}?"}, {"role": "assistant", "content": f"{n % 3}"}]}
        for n in range(80)
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "texts.csv").write_text("message,team\n" + "".join(f"What is {n}?,{n % 3}\n" for n in range(80)))
    program = [environment("torch2"), make_tiny_llama.__file__, tmp_path / "texts.csv", tmp_path / "tiny-llama"]
    subprocess.run(program, check=True)
    store = open_store(f"s3://{bucket}", credentials_from_environment(store_environment))
    run = Run(f"s3://{bucket}", str(uuid.uuid4()))
    store.upload(tmp_path / "chats.jsonl", f"{run.run_id}/chats.jsonl")
    store.upload_folder(tmp_path / "tiny-llama", f"{run.run_id}/tiny-llama")
    base, image = f"s3://{bucket}/{run.run_id}/base", image_name("language-model")
    source = {"source": f"s3://{bucket}/{run.run_id}/chats.jsonl"}
    splits = {name: f"prepare_data/{name}_dataset" for name in ("train", "validation", "test")}
    parameters = {
        "import_model": ({"source": f"s3://{bucket}/{run.run_id}/tiny-llama", "target": base}, {}),
        "prepare_data": ({**source, "split": {"validation_fraction": 0.1, "test_fraction": 0.2}}, {}),
        "train": (
            {
                "train_specification": {"trainer": "language_model", "image": image},
                "train_parameters": {"base_model": base, "batch_size": "8", "export": "both"},
            },
            {"train_dataset": splits["train"], "validation_dataset": splits["validation"]},
        ),
        "evaluate_language_model": (
            {
                "model_uri": run.uri("train/model"),
                "image": image,
                "metric": "perplexity",
                "bound": 1000.0,
                "evaluation_parameters": {"answers": 6, "answer_tokens": 4},
            },
            {"dataset": splits["test"]},
        ),
        "export_model": ({"model_name": "chat", "model_uri": run.uri("train/model")}, {}),
    }
    commands = {step: step_command(step, run, *given, specs=image_specs) for step, given in parameters.items()}
    steps = [StepContainer(step, image_of(image_specs, step), command) for step, command in commands.items()]
    logs = logs_of(api, run_in_pod("language-model", with_launcher(steps, run, bucket)))
    ran = [name for name in logs if not name.startswith("launcher-")]
    assert ran == [step.replace("_", "-") for step in commands], "".join(logs.values())[-6000:]
    scored = logs["evaluate-language-model"]
    assert re.search(r"fetching the model s3://\S+/train/\S+/model/merged", scored), scored
    assert re.search(r"score=[\d.]+ \(perplexity\) is good enough", scored), scored
    folder = run.uri("evaluate_language_model/evaluation").removeprefix(f"{store.uri}/")
    assert json.loads(store.read(f"{folder}/evaluation.json"))["prompts"] == 6
    assert len(store.read(f"{folder}/answers.jsonl").splitlines()) == 6
    assert store.exists("models/chat/1/merged/config.json"), logs["export-model"][-3000:]
    assert store_environment["AWS_SECRET_ACCESS_KEY"] not in "".join(logs.values())
