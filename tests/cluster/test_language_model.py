"""The fine-tuning of a language model in real pods of both operators, of which a rank is killed."""

import json
import re
import subprocess
from types import SimpleNamespace

import make_tiny_llama
import pytest
from cluster.jobs import left_behind
from environments import environment
from train.programs.jobs import wait_until

from kfp_distributed.components import prepare_data
from kfp_distributed.storage import credentials_from_environment, open_store

pytestmark = [pytest.mark.cluster, pytest.mark.trainer, pytest.mark.timeout(900), pytest.mark.takes(150)]

STEPS = 16


@pytest.fixture(scope="module")
def chats(bucket, store_environment, tmp_path_factory):
    """Address with the splits of 80 conversations, and a tiny Llama."""
    folder = tmp_path_factory.mktemp("chats")
    rows = [
        {"messages": [{"role": "user", "content": f"What is {n}?"}, {"role": "assistant", "content": f"{n * n}"}]}
        for n in range(80)
    ]
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "texts.csv").write_text("message,team\n" + "".join(f"What is {n}?,{n * n}\n" for n in range(80)))
    names = ("train_dataset", "validation_dataset", "test_dataset", "overview")
    outputs = {name: SimpleNamespace(path=str(folder / name), uri=str(folder / name), metadata={}) for name in names}
    split = {"validation_fraction": 0.2, "test_fraction": 0}
    prepare_data.python_func(**outputs, source=str(folder / "chats.jsonl"), split=split)
    program = [environment("torch2"), make_tiny_llama.__file__, folder / "texts.csv", folder / "tiny-llama"]
    subprocess.run(program, check=True)
    store = open_store(f"s3://{bucket}/chats", credentials_from_environment(store_environment))
    for name in ("train_dataset", "validation_dataset", "tiny-llama"):
        store.upload_folder(folder / name, name)
    return f"s3://{bucket}/chats"


def stored_checkpoints(store, step):
    return [entry.key for entry in store.list(f"{step.name}/checkpoints/") if entry.key.endswith(".json")]


def test_a_killed_rank_changes_no_loss_with_either_operator(
    start, open_namespace, image_name, chats, api, bucket, store_environment
):
    """The worker of one is killed after the first checkpoint, and that of the other after the second one."""
    steps = {}
    for operator in ("training-operator", "trainer"):
        steps[operator] = start(
            {"trainer": "language_model", "image": image_name("language-model")},
            {"distribution_type": "PyTorch", "number_of_workers": 1, "operator": operator},
            {
                "base_model": f"{chats}/tiny-llama",
                "batch_size": 16,
                "epochs": STEPS // 4,
                "learning_rate": 0.01,
                "lora_dropout": 0.1,
                "checkpoint_steps": 4,
                "evaluate_steps": 4,
            },
            pause=4.0,  # Both are killed before one of them ends.
            namespace=open_namespace,
            train_uri=f"{chats}/train_dataset",
            validation_uri=f"{chats}/validation_dataset",
        )
    store = open_store(f"s3://{bucket}/checkpoints", credentials_from_environment(store_environment))
    for step, least in zip(steps.values(), (1, 2), strict=True):
        step.wait_for(r"\[master-0\] begins without a checkpoint", 400)
        found = wait_until(lambda step=step, least=least: len(stored_checkpoints(store, step)) >= least, 60)
        assert found, step.log
        api.delete_namespaced_pod(step.pod_of("worker-0"), step.namespace, grace_period_seconds=0)
    for step in steps.values():
        step.wait_for(r"\[master-0\] continues after checkpoint-\d+", 300)
    losses = []
    for operator, step in steps.items():
        verdict = step.verdict(400)
        assert verdict["succeeded"], (operator, step.log)
        assert re.search(r"\[worker-0\] fetching the model s3://", step.log)
        (rows,) = verdict["metrics"].values()
        assert [row["step"] for row in rows] == [*range(1, STEPS + 1)]
        losses.append([(row["loss"], row.get("val_loss")) for row in rows])
        assert left_behind(step) == []
    assert losses[0] == losses[1]
    assert losses[0][-1][1] < losses[0][3][1]
