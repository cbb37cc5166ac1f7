"""When everything is read that the replicas of an ended job have printed. Pure: the caller tells the time."""

from collections.abc import Sequence

from kfp_distributed.components.train.runners.kubernetes.objects import GONE_SECONDS

LAST_LINES_SECONDS = 5.0
"""How long the last lines and states of an ended job may take to arrive."""


class LastLines:
    """Decides how long to wait for the last lines of a job. All times are in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._last_line = self._last_unread = self._last_readable = 0.0

    def line_arrived(self, now: float) -> None:
        """Notes that a line was read."""
        self._last_line = now

    def are_read(
        self, now: float, ended: float, *, unread: Sequence[bool], leader_is_over: bool, no_news: bool, given_up: bool
    ) -> bool:
        """Returns whether to stop waiting. A replica that stays silent for some seconds is not waited for.

        Args:
            now: The time.
            ended: When the job has ended.
            unread: One item for each ended container with lines still to come: whether its log cannot be read.
            leader_is_over: Whether the end of the leader is known.
            no_news: Whether all that has arrived was handled.
            given_up: Whether this step has given up a job that has not ended. Its operator restarts the replicas,
                which print until the job is deleted.
        """
        if given_up and now - ended > 2 * LAST_LINES_SECONDS:
            return True
        if unread or not leader_is_over:
            self._last_unread = now
            if not all(unread):
                self._last_readable = now
            # A replica that still runs may print for ever, so its lines alone are no reason to wait.
            return now - max(ended, min(self._last_line, self._last_readable)) > LAST_LINES_SECONDS
        # For the same reason, news that keep coming are handled for a limited time.
        return no_news or now - max(ended, self._last_unread) > GONE_SECONDS
