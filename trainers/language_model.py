"""The trainer `language_model`: fine-tuning of a language model, of an adapter or of all parameters."""

import json
import os
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils.fsdp_utils import fsdp2_load_full_state_dict
from transformers import PreTrainedModel

from kfp_distributed.trainers.hugging_face import StoredMetrics
from kfp_distributed.trainers.language_rows import language_rows
from kfp_distributed.trainers.language_training.adapters import without_adapter
from kfp_distributed.trainers.language_training.base_folder import base_folder, content_hash
from kfp_distributed.trainers.language_training.base_loading import load_base
from kfp_distributed.trainers.language_training.held_out_answers import HeldOutAnswers
from kfp_distributed.trainers.language_training.model_files import save_adapter, save_merged, save_merged_into
from kfp_distributed.trainers.language_training.objectives import Tuning
from kfp_distributed.trainers.language_training.rank_checks import check_gpus, check_quantization
from kfp_distributed.trainers.language_training.tokenizer_checks import usable_length
from kfp_distributed.trainers.language_training.tuning_trainer import describe_tokens, is_sharded, tuning_trainer
from kfp_distributed.trainers.language_training.tuning_updates import EndIfDiverged
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
    """Fine-tune a language model on conversations, prompts with completions, preferences, or texts.

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
        if parameters.method == "qlora":
            check_quantization()
        validation = language_rows(validation_dir) if validation_dir else []
        rows = language_rows(train_dir)
        trainer = tuning_trainer(parameters, rows, validation, checkpoint_dir, ranks)
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
    writes, is_divided = trainer.is_world_process_zero(), is_sharded(parameters, ranks)
    if not (writes or is_divided):
        return
    with without_checkpoint():
        size, among = trainer.args.per_device_eval_batch_size, trainer.accelerator if is_divided else None
        answers = HeldOutAnswers(validation, trainer.processing_class, size, usable_length(trainer), among)
        _save_and_ask(trainer, parameters, Path(model_dir), answers, among)
        if writes:
            write_fine_tuning(Path(metrics_dir), FineTuning(tokens, answers.answers))


def _save_and_ask(
    trainer: Tuning,
    parameters: LanguageModelParameters,
    folder: Path,
    answers: HeldOutAnswers,
    ranks: Accelerator | None,
) -> None:
    """Save what `export` names, and let the base model and the tuned model answer, if possible after that."""
    adapts, model = parameters.adapts, trainer.accelerator.unwrap_model(trainer.model)
    tokenizer, writes = trainer.processing_class, trainer.is_world_process_zero()
    for name, value in trainer.dropout_of_config.items():
        setattr(model.config, name, value)
    if adapts and parameters.export != "merged":
        save_adapter(model, folder, writes)
        if writes:
            tokenizer.save_pretrained(folder)
    merged = folder / "merged" if adapts and parameters.export == "both" else folder
    merged.mkdir(exist_ok=True)
    is_quantized = parameters.method == "qlora"
    if is_quantized and parameters.export != "adapter":
        base, _ = load_base(base_folder(parameters.base_model), parameters.chat_template, "lora")
        save_merged_into(base, model, merged)
        tokenizer.save_pretrained(merged)
    # Nothing gathers the parts of a merged model for its answers.
    answers_adapted = adapts and (ranks is not None or is_quantized or parameters.export == "adapter")
    if answers_adapted:
        answers.ask("tuned", lambda: model)
        with without_adapter(model):
            answers.ask("base", lambda: model)
    if not adapts or (parameters.export != "adapter" and not is_quantized):
        model = save_merged(model, merged, writes)
        if writes:
            tokenizer.save_pretrained(merged)
    if writes:
        _describe(parameters, folder)
    if not answers_adapted:
        answers.ask("tuned", lambda: model)
        answers.ask("base", lambda: _turned_back(parameters, model, ranks))


def _turned_back(
    parameters: LanguageModelParameters, model: PreTrainedModel, ranks: Accelerator | None
) -> PreTrainedModel:
    """Give a model the weights of the base model. A GPU may not have room for another model beside it."""
    folder, has_weights = base_folder(parameters.base_model), not ranks or ranks.is_main_process
    base, _ = load_base(folder, parameters.chat_template, parameters.method, has_weights=has_weights)
    if ranks:
        return fsdp2_load_full_state_dict(ranks, model, base.state_dict())
    model.load_state_dict(base.state_dict())
    return model


def _describe(parameters: LanguageModelParameters, folder: Path) -> None:
    """Write what the base model is, in place of what libraries write about this replica."""
    adapts = parameters.adapts
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
