"""language_model on one GPU: bfloat16, NCCL, memory, utilization, and the ends of a killed and of a failed training."""

import json
import re
from importlib.util import find_spec

import numpy as np
import pyarrow as pa
import pytest
import torch
from samples import write_dataset
from trainings import ON_GPU, train

from kfp_distributed.components.train.run.launch import TrainingFailed
from kfp_distributed.storage.dataset import Column, Label
from kfp_distributed.trainers import train_specification
from kfp_distributed.trainers.logged_values import utilization
from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters
from kfp_distributed.trainers.programs.memory_estimate import memory_estimate
from kfp_distributed.trainers.programs.model_size import model_size
from kfp_distributed.trainers.runtime.job_description import GPUS_VARIABLE

for module in ("transformers", "trl", "peft", "datasets"):
    pytest.importorskip(module)

GIB = 1 << 30
ALIKE = 0.02 if ON_GPU else 1e-5
"""Relative difference of equal trainings: some kernels of GPUs add numbers in another order each time."""


def observed(
    train_dir: str,
    validation_dir: str,
    model_dir: str,
    checkpoint_dir: str,
    metrics_dir: str,
    fault: str = "",
    killed: str = "",
    **parameters: object,
) -> None:
    """Train a language model and print facts about it, with the variables that a rank of a PyTorchJob has.

    With the fault "memory", it needs 1 PiB in its first step. With a folder `killed`, it kills itself once in step 3,
    when the folder has a checkpoint.
    """
    import json
    import os
    import signal
    import time
    from pathlib import Path

    import torch
    import torch.distributed as dist

    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ |= {**rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # 0: any port, which no other rank needs.
    if not torch.cuda.is_available():  # accelerate prefers MPI on CPUs.
        dist.init_process_group("gloo")

    from kfp_distributed.trainers import hugging_face, language_model
    from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters

    class Observed(hugging_face.StoredMetrics):
        def on_step_end(self, args: object, state: object, control: object, **others: object) -> object:
            if fault == "memory":
                torch.empty(1 << 50, dtype=torch.uint8, device=args.device)
            marker = Path(killed, "killed")
            if killed and state.global_step == 3 and not marker.exists():
                while not [*Path(killed).glob("checkpoints/*/checkpoints/*.json")]:
                    time.sleep(0.05)
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().on_step_end(args, state, control, **others)

        def on_train_end(self, args: object, state: object, control: object, model: object, **others: object) -> None:
            super().on_train_end(args, state, control, **others)
            on_gpu, weights = torch.cuda.is_available(), [*model.parameters()]
            facts = {
                "backend": dist.get_backend() if dist.is_initialized() else "",
                "devices": sorted({weight.device.type for weight in weights}),
                "trained": sorted({str(weight.dtype) for weight in weights if weight.requires_grad}),
                "frozen": sorted({str(weight.dtype) for weight in weights if not weight.requires_grad}),
                "parameters": sum(weight.numel() for weight in weights),
                "bf16": args.bf16,
                "gpu": torch.cuda.get_device_name() if on_gpu else "",
                "peak": torch.cuda.max_memory_allocated() if on_gpu else 0,
            }
            print("facts", json.dumps(facts), flush=True)

    language_model.StoredMetrics = Observed
    folders = train_dir, validation_dir, model_dir, checkpoint_dir, metrics_dir
    language_model.language_model(*folders, LanguageModelParameters(**parameters))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with 64 and 16 conversations, and with a Llama of random weights, 100 million of them on a GPU."""
    from make_tiny_llama import make_tiny_llama
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("chats")
    texts = [[("user", f"What is {n} plus {n % 7}?"), ("assistant", f"It is {n + n % 7}.")] for n in range(80)]
    chats = [json.dumps([{"role": role, "content": content} for role, content in said]) for said in texts]
    column = Column("messages", "kept", "string", source_type="conversation")
    for split, rows in (("train", chats[:64]), ("validation", chats[64:])):
        write_dataset(folder / split, [column], [pa.array(rows)], None, (), [len(rows)], split, Label("", task="none"))
    make_tiny_llama(chats, folder / "llama")
    if ON_GPU:
        sizes = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 14, "head_dim": 64}
        heads = {"num_attention_heads": 12, "num_key_value_heads": 12}
        config = AutoConfig.from_pretrained(folder / "llama", **sizes, **heads)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder / "llama")
    return folder


@pytest.fixture(scope="module")
def tune(folder, tmp_path_factory):
    """A function that tunes the model for two epochs of four steps, and returns the training and its facts."""

    def run(specification=None, place=None, **parameters):
        given = {"base_model": str(folder / "llama"), "batch_size": 16, "warmup_ratio": 0.0, "epochs": 2}
        given |= {"learning_rate": 3e-3, "checkpoint_steps": 2, "evaluate_steps": 2, **parameters}
        specification = specification or train_specification(observed, rows="all")
        place = place or tmp_path_factory.mktemp("training")
        training = train(folder, place, specification, given)
        facts = re.findall("^facts (.*)$", training.log, re.MULTILINE)
        return training, json.loads(facts[-1]) if facts else {}

    return run


ADAPTER = {"lora_dropout": 0.1, "export": "both"}


@pytest.fixture(scope="module")
def adapter(tune):
    return tune(**ADAPTER)


def losses(rows, name="loss"):
    return [row[name] for row in rows if name in row]


def test_an_adapter_is_trained_with_bfloat16_over_nccl(adapter):
    training, facts = adapter
    for name in ("loss", "val_loss"):
        assert losses(training.rows, name)[-1] < losses(training.rows, name)[0] - 0.1
    assert all(row["tokens_per_second"] > 0 for row in training.rows if "loss" in row)
    if ON_GPU:
        assert (facts["devices"], facts["backend"], facts["bf16"]) == (["cuda"], "nccl", True)
        assert facts["frozen"] == ["torch.bfloat16"]
        assert facts["parameters"] > 90e6
        used = losses(training.rows, "model_flops_utilization")
        has_peak = utilization(1.0, 1.0, 1.0, 1, facts["gpu"]) is not None
        assert len(used) == len(losses(training.rows)) * has_peak
        assert all(0 < part < 1 for part in used)


def test_the_merged_model_answers_as_the_adapter(adapter, folder):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    (_, model, _), _ = adapter
    merged = AutoModelForCausalLM.from_pretrained(model / "merged", dtype="auto")
    base = AutoModelForCausalLM.from_pretrained(folder / "llama", dtype=merged.dtype)
    assert merged.dtype == (torch.bfloat16 if ON_GPU else torch.float32)
    tokens = torch.tensor([[5, 6, 7, 8, 9]])
    with torch.no_grad():
        logits = [base(tokens).logits.float()]
        logits += [each(tokens).logits.float() for each in (PeftModel.from_pretrained(base, str(model)), merged)]
    of_base, adapted, of_merged = logits
    # bfloat16 rounds by up to 0.4 %, in each of 14 layers.
    assert (adapted - of_merged).norm() < (0.05 if ON_GPU else 1e-4) * adapted.norm()
    assert (adapted - of_base).norm() > 0.2 * adapted.norm()


def test_all_parameters_are_trained_with_the_memory_that_they_need(tune, folder):
    """A parameter needs 16 bytes: its weight, gradient and two states of AdamW are float32.

    DistributedDataParallel has a copy of the gradients, 4 bytes, and autocast one of the weights in bfloat16, 2 bytes.
    The fused AdamW, the default from PyTorch 2.8 on, has no other copies. Activations of these rows need few bytes.
    """
    training, facts = tune(method="full", learning_rate=1e-3)
    assert losses(training.rows)[-1] < losses(training.rows)[0] - 0.1
    assert (training.model / "model.safetensors").exists()
    assert facts["trained"] == ["torch.float32"]
    peaks = losses(training.rows, "peak_memory_gib")
    if ON_GPU:
        assert peaks[-1] * GIB == pytest.approx(facts["peak"], rel=0.05)
        assert 16 * facts["parameters"] <= peaks[-1] * GIB <= 1.15 * 22 * facts["parameters"]
        # One rank of DistributedDataParallel has the copy of the gradients that each of two has.
        size = model_size(json.loads((folder / "llama" / "config.json").read_text()))
        short = LanguageModelParameters("", method="full", batch_size=32, max_length=64)
        estimate = memory_estimate(size, short, 2)
        assert peaks[-1] * GIB == pytest.approx(estimate.total - estimate.context, rel=0.15)


def test_a_killed_training_ends_as_if_nothing_had_happened(tune, adapter, tmp_path):
    training, _ = tune(killed=str(tmp_path), place=tmp_path, **ADAPTER)
    assert (tmp_path / "killed").exists()
    assert re.search(r"^continues after checkpoint-\d", training.log, re.MULTILINE)
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(losses(training.rows, name), losses(adapter[0].rows, name), rtol=ALIKE)


@pytest.mark.skipif(not (ON_GPU and find_spec("bitsandbytes")), reason="it needs a GPU and bitsandbytes")
def test_an_adapter_of_a_quantized_model_needs_less_memory(tune, adapter):
    training, facts = tune(method="qlora", export="merged")
    assert losses(training.rows)[-1] < losses(training.rows)[0] - 0.1
    assert "torch.uint8" in facts["frozen"]
    assert (training.model / "model.safetensors").exists()
    peaks = [losses(each.rows, "peak_memory_gib")[-1] for each in (training, adapter[0])]
    assert peaks[0] < peaks[1]


def test_a_lack_of_memory_of_the_gpu_is_named(tune):
    error = "OutOfMemoryError: CUDA out of memory" if ON_GPU else "RuntimeError: .*can't allocate memory"
    with pytest.raises(TrainingFailed, match=rf"worker-0 failed with exit code 1, .* of the job: (torch\.)?{error}"):
        tune(fault="memory")


def test_gpus_that_the_machine_lacks_are_named_before_the_model_is_loaded(tune, monkeypatch):
    """The variable is that of a pod with as many. There is no model, which would be an error, too."""
    found = torch.cuda.device_count()
    monkeypatch.setenv(GPUS_VARIABLE, str(found + 1))
    with pytest.raises(TrainingFailed, match=f"ValueError: worker_gpus is {found + 1}, but PyTorch finds {found} GPUs"):
        tune(train_specification("language_model"), base_model="/absent")
