"""Stores the log of a `train` step in parts while the job runs, so that it exists when the job and its pods are gone.

A part is a complete gzip file of lines in the form of the log, with microseconds. Each attempt of a step has a folder:
a retried step that adopts the job reads the logs of the replicas from their begin, so lines may be in both.
"""

import gzip
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kfp_distributed.components.train.run.facts import Log
from kfp_distributed.components.train.run.shown_progress.log_entry import JOB, LogEntry, precise_lines
from kfp_distributed.components.train.tell.log_format import parse_line
from kfp_distributed.storage.errors import KeyNotFound, StorageError, StoreAway
from kfp_distributed.storage.store import Store

PART_SECONDS = 30.0
"""Seconds after which a part with lines is stored. A killed step loses at most this much of its log."""

PART_BYTES = 4 * 2**20
"""Bytes of text after which a part is stored earlier."""

WAITING_BYTES = 64 * 2**20
"""Compressed bytes that may wait for a store that is away. Beyond that, the oldest parts are dropped."""

RETRY_SECONDS = 5.0
"""Seconds after which a part that the store did not take is sent again."""

_COMPRESSED_AT_ONCE = 64 * 2**10
"""Bytes of text, as a call of zlib for each line would take longer than its compression. They are a member of the gzip
file of their own, so that a call which a signal interrupts can be repeated."""

_LEVEL = 3
"""zlib's level, which takes half the time of the default for logs of a tenth more."""


class Part:
    """Lines that are compressed as they come."""

    def __init__(self) -> None:
        """Create an empty part."""
        self.begun = time.monotonic()
        self.lines, self.text_bytes = 0, 0
        self._texts: list[str] = []
        self._pending, self._compressed = 0, bytearray()

    def add(self, entry: LogEntry) -> None:
        """Add an entry."""
        text = precise_lines(entry)
        self._texts.append(f"{text}\n")
        self.lines += 1
        self._pending += len(text)
        if self._pending >= _COMPRESSED_AT_ONCE:
            self._compress()

    def close(self) -> bytes:
        """Return the gzip file. A part may be closed again."""
        if self._texts:
            self._compress()
        return bytes(self._compressed)

    def _compress(self) -> None:
        text = "".join(self._texts).encode(errors="backslashreplace")
        compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        member, size = compressor.compress(text) + compressor.flush(), len(text)
        # SIGTERM raises SystemExit after any call in the main thread, so no call comes between these.
        self._compressed += member
        self.text_bytes += size
        self._texts, self._pending = [], 0


@dataclass(frozen=True)
class _Waiting:
    """A closed part that is not stored yet, or the number of lines of parts that were dropped."""

    number: int
    data: bytes
    lines: int


class StoredLog:
    """Stores the entries of one attempt of a step. Thread-safe. No method raises."""

    def __init__(self, log: Log) -> None:
        """Create a log without entries.

        Args:
            log: Prints a line of the step's log. A thread calls it.
        """
        self._log = log
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._part, self._waiting = Part(), deque[_Waiting]()
        self._parts = 0
        self._is_closed, self._gives_up, self._is_over = False, False, False
        self._is_away, self._has_warned = False, False
        self._store: Store | None = None
        self._thread: threading.Thread | None = None

    def add(self, entry: LogEntry) -> None:
        """Add an entry to the log."""
        with self._lock:
            if self._is_closed:
                return
            self._part.add(entry)
            if self._part.text_bytes >= PART_BYTES:
                self._close_part()
                self._wake.set()

    def start(self, open_folder: Callable[[], Store]) -> None:
        """Begin to store the entries, also those before.

        Args:
            open_folder: Returns a store, opened at the folder of the attempt. A thread calls it until it raises no
                error.
        """
        thread = threading.Thread(target=self._send_parts, args=(open_folder,), name="stored log", daemon=True)
        thread.start()
        self._thread = thread

    def end(self, gives_up: bool) -> None:
        """Begin to store the rest of the log. Later entries are ignored.

        Args:
            gives_up: Whether a part is not sent again if the store does not answer.
        """
        with self._lock:
            self._is_closed, self._gives_up = True, gives_up
            self._close_part()
        self._wake.set()

    def is_stored(self, seconds: float) -> bool:
        """Wait for some seconds until the rest of the log is stored or given up; return whether it is."""
        if self._thread:
            self._thread.join(seconds)
        return not self._thread or not self._thread.is_alive()

    def close(self) -> None:
        """Warn of lines that are not stored. Nothing is logged afterwards, because the process may end."""
        with self._lock:
            self._has_warned = self._is_over = True  # A thread must not print while the interpreter ends.
            if lines := sum(part.lines for part in self._waiting):
                self._log("WARNING", f"the last {lines} lines of the log are not stored")

    def _close_part(self) -> None:
        if not self._part.lines:
            self._part.begun = time.monotonic()
            return
        part, next_part = _Waiting(self._parts + 1, self._part.close(), self._part.lines), Part()
        # No call comes between these, as in `Part`.
        self._waiting += (part,)
        self._parts, self._part = part.number, next_part
        dropped = 0
        while sum(len(waiting.data) for waiting in self._waiting) > WAITING_BYTES:
            oldest = self._waiting.popleft()
            number, dropped = oldest.number, dropped + oldest.lines
        if dropped:
            self._waiting.appendleft(_Waiting(number, _gap(dropped), dropped))

    def _send_parts(self, open_folder: Callable[[], Store]) -> None:
        pause = PART_SECONDS
        while True:
            self._wake.wait(pause)
            self._wake.clear()
            with self._lock:
                is_last = self._is_closed
                if time.monotonic() - self._part.begun >= PART_SECONDS:
                    self._close_part()
            is_sent = self._send(open_folder)
            pause = PART_SECONDS if is_sent else RETRY_SECONDS
            if self._is_over:
                return
            if is_last and (is_sent or self._gives_up or not self._is_away):
                return

    def _send(self, open_folder: Callable[[], Store]) -> bool:
        """Send the parts that wait, oldest first; return whether the store has taken all."""
        while True:
            with self._lock:
                part = self._waiting[0] if self._waiting else None
            if part is None:
                return True
            try:
                self._store = self._store or open_folder()
                self._store.write(f"{part.number:08d}.gz", part.data, "application/gzip")
            except (StorageError, ValueError, OSError) as error:
                self._is_away = isinstance(error, StoreAway)
                if not self._has_warned:
                    self._has_warned = True
                    self._log("WARNING", f"the log is not stored beside the checkpoints at the moment: {error}")
                return False
            with self._lock:
                self._has_warned = self._is_closed and self._has_warned
                if self._waiting and self._waiting[0] is part:  # Otherwise it was dropped, although it is stored now.
                    self._waiting.popleft()


def _gap(lines: int) -> bytes:
    """Return a part that says that lines are missing."""
    part = Part()
    part.add(_warning(f"{lines} lines are missing here, as the object store did not answer"))
    return part.close()


def _warning(text: str) -> LogEntry:
    return LogEntry(time.time(), "WARNING", JOB, text)


def read_log(store: Store) -> Iterator[LogEntry]:
    """Yield the entries of all attempts of a step, each entry once, in the order in which the step has read them.

    A warning takes the place of a part that is damaged, or that is deleted meanwhile.

    Args:
        store: Store, opened at the folder of the attempts.

    Raises:
        StorageError: The store cannot be read.
    """
    attempts = [name.rstrip("/") for name in store.children() if name.endswith("/")]
    seen: Counter[int] = Counter()
    for attempt in attempts:
        counts: Counter[int] = Counter()
        for entry in _read_attempt(store, attempt):
            if len(attempts) > 1:
                # An attempt that adopted the job has read the lines of earlier attempts again. Their fractions of a
                # second may differ, because lines of one second that are read together have the time of the first.
                key = hash(entry._replace(time=int(entry.time)))
                counts[key] += 1
                if counts[key] <= seen[key]:
                    continue
                seen[key] = counts[key]
            yield entry


def _read_attempt(store: Store, attempt: str) -> Iterator[LogEntry]:
    for name in store.children(attempt):
        key = f"{attempt}/{name}"
        try:
            text = gzip.decompress(store.read(key)).decode()
        except (KeyNotFound, EOFError, OSError, ValueError, zlib.error) as error:
            yield _warning(f"the lines of {store.uri.rstrip('/')}/{key} are missing here: {error}")
            continue
        for line in text.split("\n"):
            if entry := parse_line(line):
                yield entry
