"""Metrics, checkpoints and early ends of a program that trains with the Trainer of Hugging Face transformers.

    from kfp_distributed.trainers.hugging_face import StoredMetrics

    trainer = SFTTrainer(model, args=SFTConfig(checkpoint_dir, save_steps=100), train_dataset=rows)
    trainer.add_callback(StoredMetrics(trainer, metrics_dir))
    trainer.train(resume_from_checkpoint=get_last_checkpoint(checkpoint_dir))

It works with each subclass of Trainer, such as those of trl. It needs transformers 5. This import path is public.
"""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback

from kfp_distributed.trainers.logged_values import counted_tokens, step_values, utilization
from kfp_distributed.trainers.runtime.checkpoints.folder_uploads import commit
from kfp_distributed.trainers.runtime.job_description import TRAINING_METRICS
from kfp_distributed.trainers.runtime.lifecycle.termination import EndedEarly
from kfp_distributed.trainers.sync import flush, record_step
from kfp_distributed.trainers.torch_checkpoint import is_ending

__all__ = ["StoredMetrics"]

_GIB = 1 << 30


class StoredMetrics(TrainerCallback):  # type: ignore[misc]  # Its types are those of an optional package.
    """Records what a Trainer logs as metrics of steps, stores its checkpoints, and ends it when a replica must end.

    - The numbers that the Trainer logs are recorded by `record_step`: loss, grad_norm, learning_rate and others, also
      those that a program logs itself. Left out are its counters and summary: epoch, step, total_flos, train_loss,
      num_tokens, num_input_tokens_seen, and train_ and eval_ with runtime, samples_per_second, steps_per_second,
      tokens_per_second and model_preparation_time. Metrics of an evaluation have the prefix "val_" in place of
      "eval_", as in all trainings. There is a log before each evaluation and each checkpoint.
    - tokens is the number of tokens so far, with those before a restart, and tokens_per_second that of all ranks since
      the last log, without evaluations and checkpoints. Trainers of trl count them. Others do it with
      `include_num_input_tokens_seen`.
    - peak_memory_gib is the largest memory in GiB that PyTorch had on the GPU of rank 0.
    - model_flops_utilization is the fraction, from 0 to 1, of the peak of all GPUs that the training uses. It is
      recorded for 16-bit numbers on GPUs whose peak is known. Each token counts 4 operations for each parameter, and 2
      more for one that is trained. Those of attention do not count.
    - A checkpoint is stored in the background when the Trainer has saved it, with the random state of each rank. If
      `save_total_limit` is not set, the newest one is kept on the disk, and the best one if there is a
      `metric_for_best_model`. What is on the disk is stored with each checkpoint.
    - When a replica must end soon, the Trainer saves a checkpoint after this step, and the program ends in all ranks
      when it is stored. All replicas are restarted then.
    - The Trainer shows no progress bars, and prints no logs of its own.

    Checkpoints and early ends are those of a training function. In a command, only the metrics are recorded: the files
    in checkpoint_dir are stored once they have not changed for some seconds.
    """

    def __init__(self, trainer: Trainer, metrics_dir: str) -> None:
        """Create the callback, and change the Trainer as described. Pass the callback to its `add_callback`.

        Args:
            trainer: The Trainer, in each rank.
            metrics_dir: Folder for training.json, in which rank 0 records.
        """
        self._file = Path(metrics_dir, TRAINING_METRICS)
        self._ends = False
        self._earlier = self._tokens = 0
        self._last: dict[str, float] = {}
        self._flos = self._time = 0.0
        self._trained: float | None = None
        for callback in (ProgressCallback, PrinterCallback):
            trainer.remove_callback(callback)
        if trainer.args.save_total_limit is None:
            trainer.args.save_total_limit = 2 if trainer.args.metric_for_best_model else 1

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:  # noqa: ANN401
        """Begin to measure the speed. From now on, only what `on_save` commits is stored.

        Otherwise a checkpoint whose files are written slowly could be stored without the state of the optimizer, and a
        Trainer continues after such a checkpoint without a word.
        """
        if state.is_world_process_zero:
            commit()
        self._earlier = counted_tokens(state.log_history)
        self._tokens = max(self._earlier, state.num_input_tokens_seen)
        # DeepSpeed divides the parameters among the ranks.
        counts = [(getattr(each, "ds_numel", each.numel()), each.requires_grad) for each in model.parameters()]
        total = sum(count for count, _ in counts)
        self._trained = sum(count for count, is_trained in counts if is_trained) / total if total else None
        self._flos, self._time = state.total_flos, time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ANN401
        """End the training with a checkpoint if a replica must end soon."""
        if is_ending():
            self._ends = control.should_save = control.should_training_stop = True
        return self.on_epoch_end(args, state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ANN401
        """Log before an evaluation and a checkpoint, whose counters and time the log then has."""
        if self._ends:
            control.should_evaluate = False
        control.should_log |= control.should_evaluate or control.should_save
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], model: Any = None, **_: Any) -> None:  # noqa: ANN401
        """Record the metrics, in rank 0."""
        if not state.is_world_process_zero:
            return
        values, self._last = self._last | step_values(logs), {}
        if "loss" in logs:
            values |= self._measure(args, state, logs, model)
            is_last = control.should_evaluate and state.global_step == state.max_steps
            if is_last and all(map(math.isfinite, values.values())):  # A training that diverged may end here.
                self._last = values  # Recorded with those of the evaluation: each record of the last step is a line.
                return
        if values:
            record_step(self._file, state.global_step, state.max_steps, values)

    def _measure(self, args: Any, state: Any, logs: Mapping[str, Any], model: Any) -> dict[str, float]:  # noqa: ANN401
        seconds = time.monotonic() - self._time
        values: dict[str, float] = {}
        tokens = self._earlier + logs["num_tokens"] if "num_tokens" in logs else state.num_input_tokens_seen
        if tokens > self._tokens:
            values |= {"tokens": tokens, "tokens_per_second": (tokens - self._tokens) / seconds}
            # The checkpoint has the history, from which the next start goes on.
            state.log_history[-1]["tokens"] = tokens
        if torch.cuda.is_available():
            values["peak_memory_gib"] = torch.cuda.max_memory_allocated() / _GIB
            is_16_bit = args.bf16 or args.fp16 or next(model.parameters()).element_size() == 2
            if is_16_bit and self._trained is not None:
                gpu, flos = torch.cuda.get_device_name(), state.total_flos - self._flos
                used = utilization(flos, self._trained, seconds, args.world_size, gpu)
                values |= {} if used is None else {"model_flops_utilization": used}
        self._tokens, self._flos, self._time = tokens, state.total_flos, time.monotonic()
        return values

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401
        """Measure the speed from here on."""
        self._time = time.monotonic()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401
        """Store the checkpoint, in rank 0, and measure the speed from here on."""
        _gather_random_states(Path(args.output_dir, f"checkpoint-{state.global_step}"))
        if self._ends:
            # At its end, the Trainer would delete all checkpoints but the best one, also this one.
            args.save_total_limit = None
        if state.is_world_process_zero:
            flush() if self._ends else commit()
        self._time = time.monotonic()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401
        """End the program if a replica must end soon.

        Raises:
            EndedEarly: A replica must end soon.
        """
        if self._ends:
            raise EndedEarly


def _gather_random_states(checkpoint: Path) -> None:
    """Write the random states of all ranks into the checkpoint of each, since each rank has saved its own alone."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    own = {file.name: file.read_bytes() for file in checkpoint.glob("rng_state_*")}
    found: list[dict[str, bytes]] = [{}] * dist.get_world_size()
    dist.all_gather_object(found, own)
    for name, state in ((name, state) for states in found for name, state in states.items() if name not in own):
        (checkpoint / name).write_bytes(state)
