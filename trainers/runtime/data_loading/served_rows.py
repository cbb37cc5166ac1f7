"""Serves the rows of a worker to an input graph that another process has built: the chief of parameter servers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.storage.dataset import DatasetManifest, ShardPart, parts_of_rank
from kfp_distributed.trainers.runtime.data_loading.epoch_steps import read_manifest
from kfp_distributed.trainers.runtime.data_loading.rank_part import read_part
from kfp_distributed.trainers.runtime.data_loading.row_feed import RowFeed, open_rows
from kfp_distributed.trainers.runtime.data_loading.row_stream import Windows
from kfp_distributed.trainers.runtime.workarounds.tensorflow_internals import register_function

FIRST = -1
"""Number of an iteration that begins with this call."""


class RowOptions(NamedTuple):
    """What decides how the rows of a worker become records.

    Attributes:
        seed: Seed of the order of the rows.
        class_weights: See `weights_of_classes`.
        mean: Mean of the numbers to predict, see `Label`.
        std: Their standard deviation.
    """

    seed: int
    class_weights: str
    mean: float
    std: float


class RowRequest(NamedTuple):
    """Where a worker begins to read its rows.

    Attributes:
        options: How the rows become records.
        epoch: Number of the first epoch, from 0.
        skipped: Number of records of this epoch to leave out at its beginning.
    """

    options: RowOptions
    epoch: int
    skipped: int

    def to_json(self) -> str:
        """Return the JSON text that `from_json` reads."""
        return json.dumps(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> RowRequest:
        """Return the request of a JSON text."""
        options, epoch, skipped = json.loads(text)
        return cls(RowOptions(*options), epoch, skipped)


class RowServer:
    """The rows of this worker, in windows, for one iteration at a time.

    Args:
        folder: See `open_rows`.
        manifest: Manifest of the complete dataset.
        parts: The rows of this worker.
        end: Ends the process after an error. The chief could not tell an error of the store from one of its program.
    """

    def __init__(
        self,
        folder: str,
        manifest: DatasetManifest,
        parts: Sequence[ShardPart],
        end: Callable[[Exception], NoReturn],
    ) -> None:
        self._folder, self._manifest, self._parts, self._end = folder, manifest, parts, end
        self._opened = ExitStack()
        self._feed: RowFeed | None = None
        self._options: RowOptions | None = None
        self._current: tuple[int, Windows | None] = (0, None)
        self._lock = threading.Lock()

    def window(self, request: bytes, iteration: int) -> tuple[np.int64, NDArray[np.float32]]:
        """Return the number of an iteration and its next window, [n, width + 2].

        Args:
            request: JSON text of a `RowRequest`.
            iteration: Number of the iteration. With `FIRST`, one begins, and all others end.

        Raises:
            StopIteration: Another iteration has begun since.
        """
        try:
            number, windows = self._begin(RowRequest.from_json(request)) if iteration == FIRST else self._current
            is_current = iteration in (FIRST, number)
            window = next(windows, None) if windows and is_current else None
            records = None if window is None else window.gather()
        except Exception as error:  # noqa: BLE001 - it ends the process
            self._end(error)
        if records is None:
            raise StopIteration
        return np.int64(number), records

    def close(self) -> None:
        """End all iterations, and delete the cache."""
        self._opened.close()

    def _begin(self, request: RowRequest) -> tuple[int, Windows | None]:
        with self._lock:
            feed = self._open(request.options)
            feed.stream.end()
            self._current = self._current[0] + 1, feed.windows(request.epoch, request.skipped)
            return self._current

    def _open(self, options: RowOptions) -> RowFeed:
        """Return the rows with their cache, which is that of earlier iterations unless their options were others."""
        if self._feed is None or options != self._options:
            self._opened.close()
            label = replace(self._manifest.label, mean=options.mean, std=options.std)
            manifest = replace(self._manifest, label=label)
            rows = open_rows(self._folder, manifest, self._parts, options.seed, options.class_weights)
            self._feed, self._options = self._opened.enter_context(rows), options
        return self._feed


def serve_rows(folder: str, end: Callable[[Exception], NoReturn]) -> RowServer:
    """Serve the rows of this worker to `dataset_of_served_rows`. Call it before the TensorFlow server starts.

    Args:
        folder: The folder train_dir, with the manifest and the part of this worker, see `write_part`.
        end: See `RowServer`.

    Returns:
        The server of the rows. Nothing is read before the chief asks for it.
    """
    import tensorflow as tf

    manifest = read_manifest(folder)
    server = RowServer(folder, manifest, parts_of_rank(manifest, *read_part(Path(folder))), end)
    register_function(server.window, [tf.string, tf.int64], [tf.int64, tf.float32])
    return server
