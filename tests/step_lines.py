"""The log of a train step without what differs in each run: `[REPLICA] MESSAGE`, and of the step itself `MESSAGE`."""

from kfp_distributed.components.train.run.shown_progress.log_entry import JOB, LogEntry
from kfp_distributed.components.train.tell.log_format import parse_line
from kfp_distributed.components.train.tell.step_log import StepLog


def brief(entry: LogEntry) -> str:
    """An entry without time and level."""
    return entry.message if entry.replica == JOB else f"[{entry.replica}] {entry.message}"


def into(lines: list[str]) -> StepLog:
    """A log for `launch` that collects entries in brief."""
    return StepLog(lambda entry: lines.append(brief(entry)))


def brief_lines(text: str) -> list[str]:
    """Printed lines in brief; those of another form as they are."""
    return [brief(entry) if (entry := parse_line(line)) else line for line in text.splitlines()]
