"""Fine-tune a language model with trl and LoRA: it learns to answer a message with the team that should answer it.

This is a plain program of trl. Pass `train_specification(fine_tuning, rows="all")` to `train`, with a
distribution_specification of type PyTorch. The master trains as well, so one worker makes two ranks:
`{"distribution_type": "PyTorch", "number_of_workers": 1}`. With `rows="all"` each rank has all rows, because the
Trainer divides them among the ranks itself.

On a cluster, name an image with PyTorch 2.6 or newer, trl 1, peft and the packages of images/pytorch:
`train_specification(fine_tuning, rows="all", image="registry.example.com/team/language-model:TAG")`. The model is read
from a folder that every replica can read, and nothing is downloaded. This is a folder of the image, or of a volume:
`"volumes": [{"name": "models", "path": "/mnt/models", "read_only": True}]`.

To train on this machine with a tiny model, run `make environments`, `python make_messages_csv.py` and
`~/.cache/kfp-distributed/torch2/bin/python make_tiny_llama.py messages.csv tiny-llama` once. Set
KFP_DISTRIBUTED_PYTORCH_PYTHON to the path of this Python, and run `python fine_tuning.py tiny-llama`.
"""

import sys
from pathlib import Path

from kfp import dsl

from kfp_distributed.components import prepare_data, train
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.trainers import train_specification


# --8<-- [start:function]
def fine_tuning(
    train_dir: str,
    validation_dir: str,
    model_dir: str,
    checkpoint_dir: str,
    metrics_dir: str,
    base_model: str,
    prompt_column: str,
    completion_column: str,
    epochs: int = 1,
    batch_size: int = 32,
    micro_batch_size: int = 8,
    learning_rate: float = 2e-4,
    checkpoint_steps: int = 100,
    lora_r: int = 16,
    seed: int = 0,
) -> None:
    """Train an adapter that makes a language model answer a prompt with its completion.

    Args:
        train_dir: All training rows, in each rank.
        validation_dir: Validation rows; "" for none. They are scored before each checkpoint.
        model_dir: Folder for the adapter and the tokenizer, in rank 0.
        checkpoint_dir: Folder for checkpoints, in rank 0.
        metrics_dir: Folder for the metrics of steps, in rank 0.
        base_model: Folder with config.json, the weights and the tokenizer, as `save_pretrained` writes them.
        prompt_column: Name of the column with the prompts.
        completion_column: Name of the column with the answers, which alone count for the loss.
        epochs: Number of passes over the rows.
        batch_size: Rows of an update, over all ranks.
        micro_batch_size: Rows that a rank computes at once.
        learning_rate: Learning rate of the first updates. It falls to 0 in a line.
        checkpoint_steps: Updates between two checkpoints.
        lora_r: Rank of the matrices that LoRA adds to each linear layer.
        seed: Seed of the adapter and of the order of the rows.
    """
    import os
    from pathlib import Path

    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers.trainer_utils import get_last_checkpoint
    from trl import SFTConfig, SFTTrainer

    from kfp_distributed.trainers.hugging_face import StoredMetrics

    def read(folder: str) -> Dataset:
        files = sorted(map(str, Path(folder).rglob("*.parquet")))
        rows = Dataset.from_parquet(files, columns=[prompt_column, completion_column], keep_in_memory=True)
        return rows.rename_columns({prompt_column: "prompt", completion_column: "completion"})

    ranks, on_gpu = int(os.environ.get("WORLD_SIZE", 1)), torch.cuda.is_available()
    if batch_size % (micro_batch_size * ranks):
        raise ValueError(f"{batch_size=} is no multiple of {micro_batch_size=} * {ranks=}")
    trainer = SFTTrainer(
        base_model,
        args=SFTConfig(
            checkpoint_dir,
            num_train_epochs=epochs,
            per_device_train_batch_size=micro_batch_size,
            gradient_accumulation_steps=batch_size // (micro_batch_size * ranks),
            learning_rate=learning_rate,
            save_steps=checkpoint_steps,
            eval_strategy="steps" if validation_dir else "no",
            eval_steps=checkpoint_steps,
            logging_steps=1,
            report_to="none",
            seed=seed,
            bf16=on_gpu and torch.cuda.is_bf16_supported(),
            use_cpu=not on_gpu,
            # On CPUs, accelerate prefers MPI, with which each rank would train alone.
            ddp_backend=None if on_gpu or ranks == 1 else "gloo",
        ),
        train_dataset=read(train_dir),
        eval_dataset=read(validation_dir) if validation_dir else None,
        peft_config=LoraConfig(r=lora_r, lora_alpha=2 * lora_r, target_modules="all-linear"),
    )
    trainer.add_callback(StoredMetrics(trainer, metrics_dir))
    trainer.train(resume_from_checkpoint=get_last_checkpoint(checkpoint_dir))
    trainer.save_model(model_dir)


# --8<-- [end:function]


@dsl.pipeline
def fine_tune_on_messages(source: str, base_model: str, workers: int = 1, epochs: int = 1) -> None:
    """Fine-tune with a master and several workers. The report of `train` shows the loss of other messages.

    Args:
        source: Address of the messages.
        base_model: Folder of the model in the replicas.
        workers: Number of workers.
        epochs: Number of passes over the messages.
    """
    data = prepare_data(
        source=source,
        label_column="",
        columns={"message": "text", "team": "text"},
        split={"validation_fraction": 0.25, "test_fraction": 0},
    )
    train(
        train_dataset=data.outputs["train_dataset"],
        validation_dataset=data.outputs["validation_dataset"],
        train_specification=train_specification(fine_tuning, rows="all"),
        train_parameters={
            "base_model": base_model,
            "prompt_column": "message",
            "completion_column": "team",
            "epochs": epochs,
        },
        distribution_specification={"distribution_type": "PyTorch", "number_of_workers": workers},
    )


if __name__ == "__main__":
    with local_run("fine-tuning-run"):
        fine_tune_on_messages(source="messages.csv", base_model=str(Path(sys.argv[1]).resolve()), epochs=2)
