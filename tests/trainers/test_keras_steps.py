"""The steps that `follow_steps` counts, compared with the updates of the weights that Keras has made."""

import numpy as np

from kfp_distributed.trainers.epochs.position import Position


def test_each_call_counts_the_steps_that_keras_runs_in_it():
    """An epoch of 13 steps, continued after step 2, in calls of 5: the last call of each epoch has fewer steps."""
    import tensorflow as tf
    import tf_keras

    from kfp_distributed.trainers.keras_training.keras_steps import EpochSteps, fit_from, follow_steps

    model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(1,))])
    model.compile("sgd", "mse", steps_per_execution=5)
    steps, counts, updates = EpochSteps(lambda position: None), [], []
    steps.begin(Position(0, 2, "plan"), "plan", 13)

    def advance(count, finish):
        counts.append(count)
        updates.append(int(model.optimizer.iterations.numpy()))
        steps.position = steps.position._replace(step=steps.position.step + count)

    steps.advance = advance
    follow_steps(model, lambda: 1, steps, 5)
    rows = tf.data.Dataset.from_tensors((np.ones((1, 1)), np.ones((1, 1)))).repeat()
    fit_from(model, lambda epoch, step: rows, steps, 2, lambda epoch, logs: steps.end_epoch(epoch + 1))
    assert counts == [5, 5, 1, 5, 5, 3]
    assert np.cumsum(counts).tolist() == updates
