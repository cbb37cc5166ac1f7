"""The trainer `language_model`: supervised fine-tuning of a language model, of an adapter or of all parameters."""

import gc
import json
import os
from pathlib import Path

import torch
from transformers import PreTrainedModel

from kfp_distributed.trainers.hugging_face import StoredMetrics
from kfp_distributed.trainers.language_rows import language_rows
from kfp_distributed.trainers.language_training.adapters import save_merged, without_adapter
from kfp_distributed.trainers.language_training.base_folder import base_folder, content_hash
from kfp_distributed.trainers.language_training.held_out_answers import HeldOutAnswers
from kfp_distributed.trainers.language_training.rank_checks import check_gpus
from kfp_distributed.trainers.language_training.supervised_tuning import (
    EndIfDiverged,
    SupervisedTuning,
    describe_tokens,
    load_base,
    supervised_tuning,
)
from kfp_distributed.trainers.programs.base_model import parse_hub
from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters
from kfp_distributed.trainers.runtime.job_description import BASE_MODEL
from kfp_distributed.trainers.runtime.lifecycle.rejection import without_checkpoint
from kfp_distributed.trainers.runtime.outputs.fine_tuning_file import FineTuning, write_fine_tuning


def language_model(
    train_dir: str,
    validation_dir: str,
    model_dir: str,
    checkpoint_dir: str,
    metrics_dir: str,
    parameters: LanguageModelParameters,
) -> None:
    """Fine-tune a language model on conversations, prompts with completions, or texts.

    With RANK and WORLD_SIZE, several processes average their gradients, over NCCL if there are GPUs, else over Gloo.
    The rows of an update depend on batch_size and seed alone, and not on the number of ranks. The training continues
    after the newest checkpoint.

    Args:
        train_dir: Folder of the training dataset with all rows, in each rank.
        validation_dir: Folder of the validation dataset; "" for none.
        model_dir: Folder for the adapter or the model, in rank 0.
        checkpoint_dir: Folder for the checkpoints of rank 0.
        metrics_dir: Folder for training.json and fine_tuning.json of rank 0.
        parameters: Its parameters.
    """
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    with without_checkpoint():
        check_gpus()
        validation = language_rows(validation_dir) if validation_dir else []
        rows = language_rows(train_dir)
        trainer = supervised_tuning(parameters, rows, validation, checkpoint_dir, ranks)
        trainer.add_callback(StoredMetrics(trainer, metrics_dir))
        trainer.add_callback(EndIfDiverged())
        tokens = describe_tokens(trainer, rows, validation)
        if trainer.is_world_process_zero():
            print(f"{tokens}; {ranks} ranks", flush=True)
            write_fine_tuning(Path(metrics_dir), FineTuning(tokens))
    progress = trainer.restored_progress()
    if trainer.is_world_process_zero():
        print(f"continues after {Path(progress).name}" if progress else "begins without a checkpoint", flush=True)
    trainer.train(resume_from_checkpoint=progress)
    if not trainer.is_world_process_zero():
        return
    with without_checkpoint():
        model, device = _save(trainer, parameters, Path(model_dir)), trainer.args.device
        size = trainer.args.per_device_eval_batch_size
        answers = HeldOutAnswers(validation, trainer.processing_class, size, parameters.max_length)
        answers.ask("tuned", lambda: model)
        if parameters.method == "lora" and parameters.export == "adapter":
            with without_adapter(model):
                answers.ask("base", lambda: model)
        else:  # The weights of the base model have been changed.
            del trainer, model
            answers.ask("base", lambda: _load_again(parameters, device))
        write_fine_tuning(Path(metrics_dir), FineTuning(tokens, answers.answers))


def _load_again(parameters: LanguageModelParameters, device: torch.device) -> PreTrainedModel:
    """Return the base model. The memory of the GPU may not have room for another model beside it."""
    gc.collect()
    torch.cuda.empty_cache()
    folder = base_folder(parameters.base_model)
    return load_base(folder, parameters.chat_template, parameters.method)[0].to(device)


def _save(trainer: SupervisedTuning, parameters: LanguageModelParameters, folder: Path) -> PreTrainedModel:
    """Save what `export` names; return the model, without an adapter if it was merged."""
    adapts, model = parameters.method == "lora", trainer.accelerator.unwrap_model(trainer.model)
    if adapts and parameters.export in ("adapter", "both"):
        trainer.save_model(str(folder))
    if not adapts or parameters.export in ("merged", "both"):
        merged = folder / "merged" if adapts and parameters.export == "both" else folder
        model = save_merged(model, merged)
        trainer.processing_class.save_pretrained(merged)
    for name in ("training_args.bin", "README.md"):  # A pickle, and metadata with the folder of this replica.
        for file in folder.rglob(name):
            file.unlink()
    for file in folder.glob("adapter_config.json"):
        hub = parse_hub(parameters.base_model)
        named = {"base_model_name_or_path": hub.name if hub else parameters.base_model}
        named |= {"revision": hub.revision} if hub else {}
        file.write_text(json.dumps(json.loads(file.read_text()) | named, indent=2))
    described = {"kind": parameters.export if adapts else "full", "base_model": parameters.base_model}
    (folder / BASE_MODEL).write_text(
        json.dumps(described | {"sha256": content_hash(base_folder(parameters.base_model))}, indent=1)
    )
    return model
