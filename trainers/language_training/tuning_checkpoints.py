"""Checkpoints of a fine-tuning, of which each rank stores its part. Any number of ranks can continue after one."""

import io
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME

from kfp_distributed.trainers.torch_checkpoint import load_sharded, save_sharded

_FILES = "files"


class TuningCheckpoints(Trainer):  # type: ignore[misc]  # Its types are those of an optional package.
    """A Trainer whose checkpoints are those of `save_sharded`: parameters that are trained, optimizer, and progress.

    In place of files in output_dir, which hold whole tensors and are loaded by as many ranks as have saved them.
    """

    def restored_progress(self) -> str | None:
        """Return a folder with the progress of the newest checkpoint, for `train`; None if there is no checkpoint."""
        progress = _Progress()
        step = load_sharded({"progress": progress})
        if step is None:
            return None
        parent = Path(self.args.output_dir).with_name("restored")
        shutil.rmtree(parent, ignore_errors=True)
        folder = parent / f"checkpoint-{step}"
        with zipfile.ZipFile(io.BytesIO(progress.files)) as archive:
            archive.extractall(folder)
        return str(folder)

    def create_optimizer(self, *arguments: Any) -> Any:  # noqa: ANN401
        """Return the optimizer without groups of no parameters: torch.distributed.checkpoint does not restore them."""
        optimizer = super().create_optimizer(*arguments)
        optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]
        return optimizer

    def _save_checkpoint(self, model: object, trial: object) -> None:
        self.store_flos()
        with TemporaryDirectory() as folder:
            if self.is_world_process_zero():
                self.state.save_to_json(str(Path(folder, TRAINER_STATE_NAME)))
            self._save_rng_state(folder)
            files = {file.name: file.read_bytes() for file in Path(folder).iterdir()}
        state = {**self._tensors(), "progress": _Progress(_packed(_gathered(files)))}
        save_sharded(state, self.state.global_step, wait=self.control.should_training_stop)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: object = None) -> None:
        """Do nothing: `_load_optimizer_and_scheduler`, which follows once there is an optimizer, loads both."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint and (step := load_sharded(self._tensors())) != self.state.global_step:
            raise ValueError(f"the checkpoint of step {self.state.global_step} is damaged; the one before has {step}")

    def _tensors(self) -> Mapping[str, object]:
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)  # accelerate wraps it.
        return {
            "model": _Trained(self.model),
            "optimizer": _Optimizer(self.model, optimizer),
            "scheduler": self.lr_scheduler,
        }


class _Progress:
    """The state of the Trainer, and the random states of all ranks, as the content of a ZIP archive."""

    def __init__(self, files: bytes = b"") -> None:
        self.files = files

    def state_dict(self) -> dict[str, bytes]:
        return {_FILES: self.files}

    def load_state_dict(self, values: Mapping[str, bytes]) -> None:
        self.files = values[_FILES]


class _Trained:
    """The parameters that are trained: those of a base model do not change."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        trained = {name for name, parameter in self._model.named_parameters() if parameter.requires_grad}
        values = get_model_state_dict(self._model, options=StateDictOptions(ignore_frozen_params=True))
        # There is more than parameters: what belongs to quantized ones.
        return {name: value for name, value in values.items() if name in trained}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        set_model_state_dict(self._model, values, options=StateDictOptions(strict=False))


class _Optimizer:
    def __init__(self, model: Any, optimizer: Any) -> None:  # noqa: ANN401
        self._model, self._optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = get_optimizer_state_dict(self._model, self._optimizer)
        return values

    def load_state_dict(self, values: dict[str, Any]) -> None:
        set_optimizer_state_dict(self._model, self._optimizer, values)


def _gathered(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files of all ranks, each of which has others."""
    if not (dist.is_available() and dist.is_initialized()):
        return files
    found: list[dict[str, bytes]] = [{}] * dist.get_world_size()
    dist.all_gather_object(found, files)
    return {name: content for own in found for name, content in own.items()}


def _packed(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()
