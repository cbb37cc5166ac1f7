"""Judges a training of the soak by what was observed. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.soak.plan import CAUSES, EVICTED, GROUPS, STORE_AWAY, STORE_FAILS, Plan
from cluster.soak.program import EPOCHS, ROWS, expected_model

from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import KEPT

_LINE = re.compile(r"\[([a-z]+-\d+)\] line ([0-9a-f]{8}) (\d+) (.*)")

# What a training leaves in the bucket: its model, checkpoints, metrics and records.
_KEPT_KEYS = "|".join(
    (
        r"model/(model\.json|weights)",
        r"checkpoints/JOB/checkpoints/\d{8}(\.json|\.failed|/state\.json)",
        r"checkpoints/JOB/metrics/(training|training-data)\.json",
        r"checkpoints/JOB/summary\.json",
        r"checkpoints/JOB/logs/\d{8}T\d{9}Z/\d{8}\.gz",
    )
)

_KEPT_HEARTBEAT = "cannot delete the heartbeat"


@dataclass(frozen=True)
class Attempt:
    """A process of the train step.

    Attributes:
        lines: The lines of its log, without times and without the verdict.
        verdict: The verdict; None if the process was killed by a fault.
    """

    lines: tuple[str, ...]
    verdict: Mapping[str, Any] | None


@dataclass(frozen=True)
class Observed:
    """What was observed of a training.

    Attributes:
        attempts: The processes of its step, in the order of their starts.
        injected: The kinds of faults that began before the end of the training.
        model: The content of the model; None if there is none.
        left: Objects in the cluster that remain after the end.
        keys: Keys of the training's folder in the bucket.
        job_name: Name of the job.
        error: Why the training was not observed until its end; "" if it was.
        seconds: Seconds from the start of the first attempt to the last verdict.
        stored: The stored log of all attempts, as "[REPLICA] MESSAGE".
        state: State of the training in its summary; "" if there is none.
    """

    attempts: tuple[Attempt, ...]
    injected: tuple[str, ...]
    model: str | None
    left: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    job_name: str = "train"
    error: str = ""
    seconds: float = 0.0
    stored: tuple[str, ...] = ()
    state: str = ""

    @property
    def verdicts(self) -> list[Mapping[str, Any]]:
        """The verdicts of the attempts that were not killed."""
        return [attempt.verdict for attempt in self.attempts if attempt.verdict is not None]

    @property
    def succeeded(self) -> bool:
        """Whether all attempts that were not killed succeeded."""
        return bool(self.verdicts) and all(verdict["succeeded"] for verdict in self.verdicts)


def judge(plan: Plan, observed: Observed) -> list[str]:
    """Return the violations of the invariants, each as a line that begins with the name of the invariant."""
    ends = (*_judge_end(plan, observed), *_judge_restarts(plan, observed))
    return [*ends, *_judge_lines(plan, observed), *_judge_remains(observed)]


def _judge_end(plan: Plan, observed: Observed) -> Iterator[str]:
    """Yield the violations of: SUCCEEDED with the model of an undisturbed training, or FAILED with its fault named."""
    if observed.error:
        yield f"end: {observed.error}"
    elif not observed.verdicts:
        yield "end: no attempt has a verdict"
    for verdict in observed.verdicts:
        if verdict["succeeded"]:
            yield from _judge_metrics(plan, verdict)
        else:
            yield from _judge_failure(plan, observed, verdict["cause"])
    expected = expected_model(plan.seed * 1000 + plan.number)
    if any(verdict["succeeded"] for verdict in observed.verdicts) and observed.model != expected:
        yield f"model: {observed.model!r} instead of {expected!r}"


def _judge_failure(plan: Plan, observed: Observed, cause: str) -> Iterator[str]:
    names = [plan.cause(kind) for kind in observed.injected if kind in CAUSES]
    last = cause.strip().splitlines()[-1:]
    if not plan.may_fail:
        yield f"end: failed within restart_limit = {plan.restart_limit}: {last}"
    elif not any(name in cause for name in names):
        yield f"end: the cause has none of {names}: {last}"


def _judge_metrics(plan: Plan, verdict: Mapping[str, Any]) -> Iterator[str]:
    """Yield the violations of: the rows of each epoch are counted once."""
    epochs = [(entry["epoch"], entry["rows"]) for entry in verdict["metrics"].get(plan.leader, [])]
    if epochs != [(epoch, ROWS) for epoch in range(1, EPOCHS + 1)]:
        yield f"epochs: the metrics of {plan.leader} have the epochs and rows {epochs}"


def _judge_restarts(plan: Plan, observed: Observed) -> Iterator[str]:
    """Yield the violations of: a replica starts once, and once more for each fault that may restart it.

    A step that is killed, or whose API server is away, cannot prevent that the cluster restarts a replica.
    """
    faults = [kind for kind in observed.injected if kind in GROUPS["replica"]]
    is_unseen = {*observed.injected} & {*GROUPS["step"], *GROUPS["cluster"]}
    allowed = 1 + (len(faults) if plan.restart_limit or EVICTED in faults or is_unseen else 0)
    matches = [match for attempt in observed.attempts for line in attempt.lines if (match := _LINE.fullmatch(line))]
    for replica in sorted({match[1] for match in matches}):
        starts = {match[2] for match in matches if match[1] == replica}
        if len(starts) > allowed:
            yield f"restarts: {replica} was started {len(starts)} times, allowed are {allowed}"


def _judge_lines(plan: Plan, observed: Observed) -> Iterator[str]:
    """Yield the violations of: each attempt shows the lines of each start from the first one, once and in order.

    The last lines of a start that a fault has ended may be missing, because its pod may be gone. All lines of the
    start that has saved the model must be there.
    """
    for index, attempt in enumerate(observed.attempts, 1):
        for wrong in _wrong_lines(attempt.lines):
            yield f"lines: attempt {index} shows {wrong}"
    if observed.succeeded and not any(_has_end(attempt.lines, plan.leader) for attempt in observed.attempts):
        yield f"lines: no attempt shows the last line of {plan.leader}"
    # The records wait at most for five seconds for a store that is away at the end.
    if not {STORE_AWAY, STORE_FAILS} & {*observed.injected}:
        yield from _judge_records(plan, observed)


def _wrong_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield the starts of replicas whose lines are not numbered from 0."""
    numbers: dict[tuple[str, str], list[int]] = {}
    for line in lines:
        if match := _LINE.fullmatch(line):
            numbers.setdefault((match[1], match[2]), []).append(int(match[3]))
    for (replica, start), shown in numbers.items():
        wrong = next((place for place, number in enumerate(shown) if place != number), None)
        if wrong is not None:
            yield f"of {replica}, start {start}: line {shown[wrong]} in place of line {wrong}, of {len(shown)}"


def _has_end(lines: Iterable[str], replica: str) -> bool:
    """Return whether the lines have the last one of a start of a replica that was not ended by a fault."""
    matches = filter(None, map(_LINE.fullmatch, lines))
    return any(match[1] == replica and match[4] == "end" for match in matches)


def _judge_records(plan: Plan, observed: Observed) -> Iterator[str]:
    """Yield the violations of: the stored log has each line once and in order, and the summary has the outcome."""
    for wrong in _wrong_lines(observed.stored):
        yield f"stored log: it has {wrong}"
    if observed.succeeded and not _has_end(observed.stored, plan.leader):
        yield f"stored log: it has not the last line of {plan.leader}"
    expected = "succeeded" if observed.succeeded else "failed"
    if observed.verdicts and observed.state != expected:
        yield f"summary: the state is {observed.state!r} instead of {expected!r}"


def _judge_remains(observed: Observed) -> Iterator[str]:
    """Yield the violations of: nothing of a training is left, in the cluster and in the bucket."""
    if observed.left:
        yield f"cluster: left {', '.join(observed.left)}"
    kept = re.compile(_KEPT_KEYS.replace("JOB", re.escape(observed.job_name)))
    lines = [line for attempt in observed.attempts for line in attempt.lines]
    # A step whose store is away at the end names the heartbeat that it cannot delete.
    others = [key for key in observed.keys if not kept.fullmatch(key)]
    if others := [key for key in others if not any(_KEPT_HEARTBEAT in line and key in line for line in lines)]:
        yield f"bucket: left {', '.join(others)}"
    complete = [key for key in observed.keys if re.search(r"/checkpoints/\d{8}\.json$", key)]
    if len(complete) > KEPT:
        yield f"bucket: has {len(complete)} checkpoints, not {KEPT}"
