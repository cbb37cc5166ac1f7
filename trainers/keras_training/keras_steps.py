"""The steps of a Keras trainer: `fit` from a position on, and the end after a step if a replica must end soon."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import tensorflow as tf
import tf_keras

from kfp_distributed.trainers.epochs.position import Position
from kfp_distributed.trainers.runtime.checkpoints.folder_uploads import flush
from kfp_distributed.trainers.runtime.lifecycle.termination import EndedEarly, is_ending
from kfp_distributed.trainers.runtime.monitoring.sampling import count_rows
from kfp_distributed.trainers.runtime.workarounds.tensorflow_internals import never_destroy

_SCHEDULED_STEPS = 10
"""Steps for each worker that wait on a chief for the workers. They have to be finished before a checkpoint is saved.
With 10, two workers with steps of 8 ms are at most a tenth slower than without a limit."""

_POLL_SECONDS = 0.002
"""Interval at which a chief looks whether a step is finished, less than most steps take."""


class EpochSteps:
    """Counts the finished steps of the epoch, and ends the program after one if a replica must end soon.

    Attributes:
        position: Finished epochs, and finished steps of the next one.
        number: Number of steps of an epoch.
    """

    def __init__(self, save: Callable[[Position], object]) -> None:
        """Create the count.

        Args:
            save: Saves a checkpoint with a position.
        """
        self.position, self.number, self._save = Position(), 0, save

    def begin(self, saved: Position, plan: str, steps: int) -> str:
        """Set the position from which the training continues, and return a text for the log about it.

        Args:
            saved: Position of the checkpoint.
            plan: Plan of this training.
            steps: Number of steps of an epoch.
        """
        step, text = saved.resume(plan, steps)
        self.position, self.number = saved._replace(step=step, plan=plan), steps
        return text

    def advance(self, count: int, finish: Callable[[], object]) -> None:
        """Count steps, and end the program after them if a replica must end soon.

        Args:
            count: Number of steps.
            finish: Returns when all of them are finished.

        Raises:
            EndedEarly: A replica must end soon. The checkpoint is stored.
        """
        self.position = self.position._replace(step=self.position.step + count)
        # After the last step, the metrics of the epoch are known first.
        if self.position.step < self.number and is_ending():
            finish()
            self._end(self.position)

    def end_if_told(self, metrics: Mapping[str, float]) -> None:
        """End the program after the last step of an epoch if a replica must end soon.

        Args:
            metrics: Metrics of the epoch, as `fit` logs them.

        Raises:
            EndedEarly: A replica must end soon. The checkpoint is stored.
        """
        if is_ending():
            values = {name: float(value) for name, value in metrics.items()}
            self._end(self.position._replace(step=self.number, metrics=values))

    def end_epoch(self, epoch: int) -> None:
        """Note that an epoch has ended, and save its checkpoint.

        Args:
            epoch: Number of finished epochs.
        """
        self.position = Position(epoch, 0, self.position.plan)
        self._save(self.position)

    def _end(self, position: Position) -> NoReturn:
        self._save(position)
        flush()
        print(f"saved a checkpoint in epoch {position.epoch + 1} after step {position.step}", flush=True)
        raise EndedEarly


def follow_steps(
    model: tf_keras.Model, rows_of_step: Callable[[], int], steps: EpochSteps, at_once: int = 1, workers: int = 1
) -> None:
    """Follow the steps of `fit`: count them and their rows, and keep the input iterator alive.

    This is no callback of Keras, because one for each batch makes `fit` wait for the metrics of each step.

    Args:
        model: Compiled model, before the call of `fit`.
        rows_of_step: Returns the number of rows that this process reads in a step, for its samples.
        steps: Steps of the training, which may end the program.
        at_once: Number of steps in one call, as the model is compiled (`steps_per_execution`). Default: 1.
        workers: Number of workers that compute the steps of a chief. Default: 1.
    """
    make_train_function: Callable[[bool], Callable[[object], object]] = model.make_train_function
    followed: list[Callable[[object], object]] = []
    kept: set[int] = set()

    def make(force: bool = False) -> Callable[[object], object]:
        step = make_train_function(force)
        if step in followed:  # By an earlier call of `fit`.
            return step
        has_servers = isinstance(model.distribute_strategy, tf.distribute.ParameterServerStrategy)
        await_steps = _limit_schedule(model, workers) if has_servers else lambda count: lambda: None

        def follow(iterator: object) -> object:
            if id(iterator) not in kept:
                kept.add(id(iterator))
                never_destroy(iterator)
            # The last call of an epoch runs the steps that remain.
            count = min(at_once, steps.number - steps.position.step)
            count_rows(rows_of_step() * count)
            logs = step(iterator)
            steps.advance(count, await_steps(count))
            return logs

        followed.append(follow)
        return follow

    model.make_train_function = make


def _limit_schedule(model: tf_keras.Model, workers: int) -> Callable[[int], Callable[[], object]]:
    """Return a function that is called after each step, and returns a function that waits for all steps.

    With parameter servers, Keras schedules all steps of an epoch at once. Then nobody knows which of them are finished
    when a checkpoint must be saved soon. So the first function waits until few are left.
    """
    coordinator = tf.distribute.coordinator.ClusterCoordinator(model.distribute_strategy)
    limit = _SCHEDULED_STEPS * workers
    updates, scheduled, finished = model.optimizer.iterations, 0, 0
    before = int(updates.numpy())

    def after(count: int) -> Callable[[], object]:
        nonlocal scheduled, finished
        scheduled += count
        while scheduled - finished >= limit:
            finished = int(updates.numpy()) - before
            if scheduled - finished >= limit and coordinator.done():
                finished = scheduled
            elif scheduled - finished >= limit:
                time.sleep(_POLL_SECONDS)
        return lambda: coordinator.join()

    return after


def fit_from(
    model: tf_keras.Model,
    rows: Callable[[int, int], object],
    steps: EpochSteps,
    epochs: int,
    end_epoch: Callable[[int, dict[str, float]], object],
    callbacks: Sequence[tf_keras.callbacks.Callback] = (),
) -> None:
    """Train the remaining steps of an epoch, and the epochs after it. At least one epoch is not finished.

    Args:
        model: Compiled model.
        rows: Returns the input of `fit` from an epoch on, after some of its steps.
        steps: Steps of the training, with the position from which it continues.
        epochs: Number of the last epoch.
        end_epoch: Callback with the number of an epoch, from 0, and the metrics of its steps. It may set
            `model.stop_training` to end the training.
        callbacks: Callbacks of Keras that run before it. Default: none.
    """
    epoch, step, _, metrics = steps.position
    model.stop_training = False
    last = tf_keras.callbacks.LambdaCallback(on_epoch_end=end_epoch)
    options = {"verbose": 0, "callbacks": [*callbacks, last]}
    if step and metrics:
        end_epoch(epoch, dict(metrics))
        epoch += 1
    elif step:
        data = rows(epoch, step)
        model.fit(data, initial_epoch=epoch, epochs=epoch + 1, steps_per_epoch=steps.number - step, **options)
        epoch += 1
    if epoch < epochs and not model.stop_training:
        model.fit(rows(epoch, 0), initial_epoch=epoch, epochs=epochs, steps_per_epoch=steps.number, **options)
