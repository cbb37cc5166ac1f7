"""What a local run shows in a terminal: the steps one under another, and a bar for each replica that trains."""

import re
import time
from collections import deque
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from kfp_distributed.trainers.runtime.progress import parse_progress

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STEP = re.compile(r"- (?:INFO|ERROR) - (Executing task|Task) '([^']+)'(?: finished with status (\w+))?")
# What says nothing of why a step failed: kfp's own lines, with the input that it prints as JSON, and empty ones.
_NOISE = re.compile(r" - INFO - |^\s*\[KFP Executor |^[\s-]*$|^\s*[\[\]{}\"]")
_REPLICA = re.compile(r"^\s*\[((?:chief|worker|ps|evaluator|launcher|master)-\d+)\] (.*)$")


@dataclass(frozen=True)
class StepStarted:
    """kfp starts a step."""

    step: str


@dataclass(frozen=True)
class StepEnded:
    """kfp says how a step ended."""

    step: str
    succeeded: bool


@dataclass(frozen=True)
class ReplicaLine:
    """A replica of the training printed a line."""

    replica: str
    text: str


def parse_line(line: str) -> StepStarted | StepEnded | ReplicaLine | None:
    """Reads one line of what `kfp.local` prints; None for a line that says nothing of the three."""
    plain = _COLOUR.sub("", line)
    if replica := _REPLICA.match(plain):
        return ReplicaLine(replica[1], replica[2])
    if step := _STEP.search(plain):
        if step[1] == "Executing task":
            return StepStarted(step[2])
        if step[3]:
            return StepEnded(step[2], step[3] == "SUCCESS")
    return None


class RunView:
    """Shows a run while it works; a file-like object that takes what `kfp.local` prints.

    In a terminal it draws bars; elsewhere it prints a line for each step and each epoch of each replica.

    Attributes:
        seconds: How long each step took, by its name, in the order of the steps.
        failed: The step that failed, or "".
        last_lines: The last lines of the step that is or was running.
    """

    def __init__(self, console: Console, log: TextIO | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.failed = ""
        self.last_lines: deque[str] = deque(maxlen=30)
        self._console = console
        self._log = log
        self._part = ""
        self._started: dict[str, float] = {}
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description:<24}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._live = Live(self._progress, console=console, refresh_per_second=8, transient=False)

    def __enter__(self) -> "RunView":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._console.is_terminal:
            for bar in self._progress.tasks:
                if not bar.finished:
                    self._progress.stop_task(bar.id)
            self._live.stop()

    def write(self, text: str) -> int:
        """Takes text as a stream does; whole lines are shown."""
        *lines, self._part = (self._part + text).split("\n")
        for line in lines:
            self._take(line)
        return len(text)

    def flush(self) -> None:
        """Does nothing: lines are shown when they are whole."""

    def _take(self, line: str) -> None:
        if self._log:
            self._log.write(_COLOUR.sub("", line) + "\n")
        match parse_line(line):
            case StepStarted(step):
                self._start_step(step)
            case StepEnded(step, succeeded):
                self._end_step(step, succeeded)
            case ReplicaLine(replica, text):
                self.last_lines.append(f"[{replica}] {text}")
                self._show_replica(replica, text)
            case None if not _NOISE.search(line):
                self.last_lines.append(line.strip())

    def _start_step(self, step: str) -> None:
        self.last_lines.clear()
        self._started[step] = time.monotonic()
        self._say(f"{step} …")
        self._bars[step] = self._progress.add_task(f"[bold]{step}", total=None, note="")

    def _end_step(self, step: str, succeeded: bool) -> None:
        self.seconds[step] = time.monotonic() - self._started.get(step, time.monotonic())
        self._say(f"{step}: {'done' if succeeded else 'failed'} after {self.seconds[step]:.1f} s")
        if not succeeded:
            self.failed = step
        note = "" if succeeded else "[red]failed"
        for name, bar in self._bars.items():
            task = self._progress.tasks[bar]
            if name == step:
                self._progress.update(bar, total=1, completed=1 if succeeded else 0, note=note)
            if not task.finished:
                self._progress.stop_task(bar)

    def _show_replica(self, replica: str, text: str) -> None:
        if replica not in self._bars:
            self._bars[replica] = self._progress.add_task(f"  {replica}", total=None, note="starting")
        progress = parse_progress(text)
        if progress is None:
            if text == f"{replica} serves":
                self._progress.update(self._bars[replica], note="serves the others")
            return
        self._say(f"  {replica}: {text}")
        metrics = "  ".join(f"{name} {value:.4f}" for name, value in progress.metrics.items() if "val_" not in name)
        note = f"epoch {progress.epoch}/{progress.epochs}  {metrics}"
        self._progress.update(self._bars[replica], total=progress.epochs, completed=progress.epoch, note=note)

    def _say(self, text: str) -> None:
        if not self._console.is_terminal:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)
