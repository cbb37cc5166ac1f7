"""Decide when all lines of an ended job have been read. Pure: the caller passes the time."""

from collections.abc import Sequence

from kfp_distributed.components.train.run.runners.kubernetes.create.object_requests import GONE_SECONDS

LAST_LINES_SECONDS = 5.0
"""Maximum seconds until the last lines and states of an ended job arrive."""


class LastLines:
    """Decides how long to wait for the last lines of a job. All times are in seconds of the same monotonic clock."""

    def __init__(self) -> None:
        self._last_line = self._last_unread = self._last_readable = 0.0
        self._unread_logs = 0

    def line_arrived(self, now: float) -> None:
        """Record that a line was read."""
        self._last_line = now

    def are_read(
        self, now: float, ended: float, *, unread: Sequence[bool], leader_is_over: bool, no_news: bool, given_up: bool
    ) -> bool:
        """Return whether to stop waiting. The wait ends if no replica has printed for `LAST_LINES_SECONDS`.

        Args:
            now: Current time.
            ended: Time at which the job ended.
            unread: One item per ended container whose log is not read to its end: whether the log cannot be read.
            leader_is_over: Whether the end of the leader is known.
            no_news: Whether all received news have been handled.
            given_up: Whether the step gave up a job that has not ended by itself. Its operator may restart replicas,
                which print until the job is deleted.
        """
        if given_up and now - ended > 2 * LAST_LINES_SECONDS:
            return True
        if len(unread) < self._unread_logs:
            # Many logs are read to their end one after another. Most have no more lines.
            self._last_line = now
        self._unread_logs = len(unread)
        if unread or not leader_is_over:
            self._last_unread = now
            if not all(unread):
                self._last_readable = now
            # A running replica may print forever, so lines extend the wait only while an unread log can be read.
            return now - max(ended, min(self._last_line, self._last_readable)) > LAST_LINES_SECONDS
        # For the same reason news are handled for a limited time.
        return no_news or now - max(ended, self._last_unread) > GONE_SECONDS
