"""Records the metrics of steps: thinned in the metrics file, for TensorBoard, in lines, and for Kubeflow Trainer."""

import os
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import SupportsFloat

from kfp_distributed.trainers.runtime.checkpoints.folder_uploads import commit_metrics
from kfp_distributed.trainers.runtime.checkpoints.gathered_metrics import add_writer
from kfp_distributed.trainers.runtime.job_description import REPLICA_VARIABLE
from kfp_distributed.trainers.runtime.monitoring.progress import Progress, format_progress
from kfp_distributed.trainers.runtime.monitoring.status_server import report_progress
from kfp_distributed.trainers.runtime.outputs.metrics_file import (
    changing,
    checked_metrics,
    not_finite,
    read_steps,
    update_metrics_file,
)
from kfp_distributed.trainers.runtime.outputs.step_points import MAX_METRICS, StepPoints
from kfp_distributed.trainers.runtime.outputs.tensorboard_logs import log_scalars

TENSORBOARD_VARIABLE = "KFP_DISTRIBUTED_TENSORBOARD_DIR"
"""Environment variable with the folder for TensorBoard's logs; "" for none."""

WRITE_SECONDS = 10.0
"""Seconds after which the next step is written and stored, and shown in a line: the interval of a replica's samples."""


class StepRecorder:
    """Records the steps of one metrics file. See `record_step`.

    Args:
        file: Metrics file, which may have steps of an earlier start.
        clock: Returns the time in seconds. Default: a clock that is never set back.
    """

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._points = StepPoints(read_steps(file))
        self._last_written = self._points.last
        self._unwritten: list[tuple[int, Mapping[str, float]]] = []
        self._shown = -WRITE_SECONDS
        self._not_finite: set[str] = set()
        self._has_left_out = False
        self._latest: dict[str, float] = {}
        """Latest value of each metric."""
        self._unshown: dict[str, float] = {}
        """Latest value of each metric that was recorded after the last line."""
        self._process = os.getpid()

    def record(self, step: int, steps: int, values: Mapping[str, float]) -> None:
        """Record a step, and write the file if `WRITE_SECONDS` have passed or it is the last one."""
        for name in sorted(not_finite(values) - self._not_finite):
            print(f"warning: {name} is {values[name]} in step {step}", flush=True)
        self._not_finite = self._not_finite - values.keys() | not_finite(values)
        with changing:
            first = self._points.add(step, values)
            self._unwritten.append((step, values))
            self._unshown |= {name: value for name, value in values.items() if name not in self._points.left_out}
        if self._points.left_out and not self._has_left_out:
            self._has_left_out = True
            left_out = ", ".join(sorted(self._points.left_out))
            print(f"warning: record_step keeps {MAX_METRICS} metrics, the first ones; left out: {left_out}", flush=True)
        if first and (folder := os.environ.get(TENSORBOARD_VARIABLE)):
            log_scalars(folder, step, first)
        is_last = 0 < step == steps
        if is_last or self._clock() - self._shown >= WRITE_SECONDS:
            self._show(step, steps)

    def _show(self, step: int, steps: int) -> None:
        """Let the file be stored, and print and post the progress with the metrics of all steps since the last line."""
        self._shown = self._clock()
        commit_metrics()
        with changing:
            unshown, self._unshown = self._unshown, {}
            self._latest = self._latest | unshown
            latest = self._latest
        print(format_progress(Progress(step, steps, unshown, "step")), flush=True)
        # Each post replaces the one before. The train step, which reads the lines, keeps the values of earlier ones.
        report_progress(Progress(step, steps, latest, "step"))

    def write(self) -> bool:
        """Add the new steps to the file, and return True; False if there are none.

        The file may have steps that another process has added meanwhile, such as a fork that trains. They are kept if
        this process does not go back to a step before its own last one. A fork of this process writes nothing of what
        it has of this object: this process writes it.
        """
        if os.getpid() != self._process:
            return False
        with changing:
            if not self._unwritten:
                return False
            points = StepPoints(read_steps(self._file), self._last_written)
            for step, values in self._unwritten:
                points.add(step, values)
            replica = os.environ.get(REPLICA_VARIABLE, "replica-0")
            update_metrics_file(self._file, {"replica": replica, "steps": points.rows()})
            self._points, self._last_written, self._unwritten = points, points.last, []
        return True


def record_step(file: Path, step: int, steps: int, metrics: Mapping[str, SupportsFloat]) -> None:
    """Record a step of the training: for the report, MLflow and TensorBoard, and in the progress of the job.

    It may be called after each step, or after some. Of a training of 2,000 steps or more, one point of each metric is
    kept of every 2, 4, 8, ... steps. The file is written and stored in the background with the first step after 10
    seconds, with the next checkpoint, and when the program ends. A process that is killed loses the points since then:
    those of up to 10 seconds.

    A step before the last one that this process has recorded, or that was in the file before, removes the points after
    it: the training has begun again at a checkpoint. So does a step before the last one of one of its metrics, also if
    a fork has recorded that. Step 0 removes none. A metric that becomes NaN or infinite causes a warning.

    Only one process of a job should record steps, such as rank 0.

    Args:
        file: Metrics file, such as metrics_dir/training.json, which may have epochs too.
        step: Number of the step, from 1; 0 for values before the first one.
        steps: Number of the last step; 0 if it is not known.
        metrics: Metrics of the step, by name, such as {"loss": 0.25}. "val_loss" is drawn in the chart of "loss". At
            most 100 metrics of a training are kept. "epoch" is left out, because it is no metric but another number of
            the same step.

    Raises:
        TypeError: A metric is not a number. The message names it.
        ValueError: The step is negative, or a metric has the name "step".
    """
    if step < 0 or steps < 0:
        raise ValueError(f"record_step: step={step}, steps={steps}; allowed are whole numbers of 0 or more")
    values = checked_metrics("record_step", metrics)
    if "step" in metrics:
        raise ValueError(
            f"record_step: a metric has the name 'step' (with the value {float(metrics['step']):g}), which is that of "
            "the number of the step: pass the number as the argument step, and rename the metric or leave it out"
        )
    # A fork that trains has a recorder of its own.
    _recorder(Path(file).absolute(), os.getpid()).record(int(step), int(steps), values)


@cache
def _recorder(file: Path, process: int) -> StepRecorder:
    recorder = StepRecorder(file)
    add_writer(recorder.write)
    return recorder
