"""A plain script of trl, which fine-tunes a model with LoRA. `torchrun` starts it."""

import argparse
import json
from pathlib import Path

from datasets import Dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

UPDATE = 16
"""Rows of an update, over all ranks."""


def main() -> None:
    """Train on rows in their order, and write the losses of all updates."""
    options = argparse.ArgumentParser()
    for name in ("--rows", "--base_model", "--model_dir"):
        options.add_argument(name, type=Path, required=True)
    arguments = options.parse_args()
    settings = SFTConfig(
        str(arguments.model_dir.with_name("checkpoints")),
        num_train_epochs=1,
        per_device_train_batch_size=UPDATE // 2,
        learning_rate=2e-4,
        lr_scheduler_type="linear",
        warmup_steps=0,
        max_length=2048,
        activation_checkpointing=True,
        gradient_checkpointing=True,
        train_sampling_strategy="sequential",
        save_steps=0.1,
        save_total_limit=1,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        seed=0,
        bf16=False,  # The default is true, also on CPUs.
        use_cpu=True,
        ddp_backend="gloo",
        ddp_find_unused_parameters=False,
    )
    trainer = SFTTrainer(
        str(arguments.base_model),
        args=settings,
        train_dataset=Dataset.from_parquet(str(arguments.rows), keep_in_memory=True),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    trainer.train()
    if trainer.is_world_process_zero():
        trainer.save_model(str(arguments.model_dir))
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        arguments.model_dir.with_name("losses.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
