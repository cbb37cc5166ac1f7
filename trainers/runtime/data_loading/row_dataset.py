"""Makes the stream of a rank's rows the input of Keras."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.trainers.runtime.data_loading.row_feed import RowFeed
from kfp_distributed.trainers.runtime.data_loading.served_rows import FIRST, RowRequest
from kfp_distributed.trainers.runtime.workarounds.tensorflow_internals import call_where_it_runs

if TYPE_CHECKING:
    import tensorflow as tf


def dataset_of_rows(feed: RowFeed, width: int, batch: int, epoch: int = 0, skipped: int = 0) -> tf.data.Dataset:
    """Return an endless tf.data.Dataset of inputs [batch, width], labels [batch] and weights [batch].

    It ends the iterators of an earlier dataset of the feed, which Keras has abandoned. Each iterator of the dataset
    begins with the same record.

    Args:
        feed: The rows.
        width: Number of inputs of a row.
        batch: Rows of a batch.
        epoch: Number of the first epoch, from 0. Default: 0.
        skipped: Number of records of this epoch to leave out at its beginning. Default: 0.
    """
    import tensorflow as tf

    def records() -> Iterator[NDArray[np.float32]]:
        with closing(feed.windows(epoch, skipped)) as windows:
            for window in windows:
                yield window.gather()
                del window  # Not kept while the next one is awaited.

    feed.stream.end()
    signature = tf.TensorSpec([None, width + 2], tf.float32)
    windows = tf.data.Dataset.from_generator(records, output_signature=signature)
    return _batches(windows, width, batch)


def dataset_of_served_rows(request: RowRequest, width: int, batch: int) -> tf.data.Dataset:
    """Return the same for the rows that `serve_rows` serves in the process where the dataset runs.

    Its graph calls a function of that process. A Python generator would belong to the process that builds the graph.

    Args:
        request: Where each iterator of the dataset begins.
        width: Number of inputs of a row.
        batch: Rows of a batch.
    """
    import tensorflow as tf

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def following(iteration: tf.Tensor, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        arguments = [tf.constant(request.to_json()), iteration]
        iteration, records = call_where_it_runs(arguments, [tf.int64, tf.float32])
        return tf.ensure_shape(iteration, []), tf.ensure_shape(records, [None, width + 2])

    windows = tf.data.Dataset.range(2**62).scan(tf.constant(FIRST, tf.int64), following)
    return _batches(windows, width, batch)


def _batches(windows: tf.data.Dataset, width: int, batch: int) -> tf.data.Dataset:
    """Return windows of records [n, width + 2] as batches."""
    import tensorflow as tf

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def split(records: tf.Tensor) -> tuple[tf.Tensor, ...]:
        values = tf.ensure_shape(records, [batch, width + 2])
        return values[:, :width], values[:, width], values[:, width + 1]

    options = tf.data.Options()
    # Autotuning does not speed up such a short pipeline, and its thread may take seconds to end (see
    # tensorflow_internals.py).
    options.autotune.enabled = False
    options.threading.private_threadpool_size = 2
    return windows.rebatch(batch, drop_remainder=True).map(split).prefetch(2).with_options(options)
