"""Shows the progress of a local run: a table of steps and replicas in a terminal or notebook, else lines."""

import io
import re
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from kfp_distributed.components.train.run.shown_progress.log_entry import JOB, LogEntry
from kfp_distributed.components.train.run.shown_progress.training_progress import TrainingProgress
from kfp_distributed.components.train.tell.log_format import parse_line as parse_entry
from kfp_distributed.pipelines.progress_table import StepProgress, progress_table
from kfp_distributed.trainers.runtime.monitoring.progress import parse_progress
from kfp_distributed.trainers.runtime.monitoring.samples import split_sample

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_KFP_TIME = r"^[\d:.]+ - "
"""Prefix of a line of kfp itself. It is not indented: a step may run a pipeline of its own, or log in the same form."""

_KFP = f"{_KFP_TIME}(?:INFO|ERROR) - "

_PIPELINE = re.compile(_KFP + "Running pipeline: ")
_STEP = re.compile(_KFP + r"(Executing task|Task) '([^']+)'(?: finished with status (\w+))?")
_NOISE = re.compile(_KFP_TIME + r"INFO - |^\s*\[KFP Executor |^[\s-]*$|^\s*[\[\]{}\"]")
"""Lines of kfp itself, with the inputs of steps as JSON. They are left out of the error of a failed step."""

_INDENT = "    "
"""Indentation of the lines of a step in the output of kfp."""

_UPDATE_SECONDS = 0.5
"""Seconds between two updates of a notebook."""


@dataclass(frozen=True)
class PipelineStarted:
    """kfp starts a pipeline."""


@dataclass(frozen=True)
class StepStarted:
    """kfp starts a step."""

    step: str


@dataclass(frozen=True)
class StepEnded:
    """kfp reports how a step ended."""

    step: str
    succeeded: bool


def parse_line(line: str) -> PipelineStarted | StepStarted | StepEnded | LogEntry | None:
    """Parse a line of the output of `kfp.local`. Return None for a line of another form."""
    plain = _COLOR.sub("", line)
    if entry := parse_entry(plain.removeprefix(_INDENT)):
        return entry
    if _PIPELINE.search(plain):
        return PipelineStarted()
    if step := _STEP.search(plain):
        if step[1] == "Executing task":
            return StepStarted(step[2])
        if step[3]:
            return StepEnded(step[2], step[3] == "SUCCESS")
    return None


class Display(Protocol):
    """Shows the table."""

    def begin(self) -> None:
        """Show the table for the first time."""

    def update(self) -> None:
        """Show the table again, unless it was updated a moment ago."""

    def end(self) -> None:
        """Show the table for the last time. It stays."""


class _Terminal:
    """Draws the table below the printed lines, four times a second."""

    def __init__(self, console: Console, render: Callable[[], Table]) -> None:
        # Standard output is redirected to the view already.
        self._live = Live(get_renderable=render, console=console, refresh_per_second=4, redirect_stdout=False)

    def begin(self) -> None:
        self._live.start()

    def update(self) -> None:
        """Do nothing: a thread of rich draws."""

    def end(self) -> None:
        self._live.stop()


class _Notebook:
    """Replaces the table in the output of a notebook's cell. That needs no widgets, and is saved with the notebook."""

    def __init__(self, render: Callable[[], Table]) -> None:
        self._render = render
        self._handle: Any = None
        self._shown = 0.0

    def begin(self) -> None:
        from IPython.display import display  # Only notebooks have it.

        self._handle = display(self._render(), display_id=True)  # type: ignore[no-untyped-call]

    def update(self) -> None:
        if time.monotonic() - self._shown > _UPDATE_SECONDS:
            self.end()

    def end(self) -> None:
        self._shown = time.monotonic()
        self._handle.update(self._render())


class _NoDisplay:
    """Shows no table, because the output is a file or a pipe."""

    def begin(self) -> None:
        pass

    def update(self) -> None:
        pass

    def end(self) -> None:
        pass


@dataclass
class _Step:
    name: str
    thread: int = field(default_factory=threading.get_ident)
    started: float = field(default_factory=time.monotonic)
    state: str = "running"
    seconds: float = 0.0
    training: TrainingProgress = field(default_factory=TrainingProgress)
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=30))

    def progress(self) -> StepProgress:
        """Return the step for the table."""
        seconds = self.seconds or (time.monotonic() - self.started if self.state == "running" else 0.0)
        return StepProgress(self.name, self.state, seconds)


class RunView(io.TextIOBase):
    """Shows a run. It is the stream that `kfp.local` prints to."""

    def __init__(
        self,
        console: Console,
        log: TextIO | None = None,
        *,
        echo: bool = False,
        is_interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create a view, which shows nothing before it is entered as a context.

        Args:
            console: Where to show the run.
            log: File for everything that is printed except samples. Default: none.
            echo: Whether to show the output of steps other than `train`. Default: no.
            is_interrupted: Whether an interrupt ends the steps, which have not failed then. Default: no.
        """
        super().__init__()
        self._console = console
        self._log = log
        self._echo = echo
        self._is_interrupted = is_interrupted
        # kfp runs the steps of a ParallelFor in threads, each of which prints a line in pieces.
        self._parts: defaultdict[int, str] = defaultdict(str)
        self._steps: list[_Step] = []
        self._failed: _Step | None = None
        self._display = _display(console, self._render)

    @property
    def failed(self) -> str:
        """Name of the first step of the pipeline that failed; "" if none has."""
        return self._failed.name if self._failed else ""

    @property
    def last_lines(self) -> list[str]:
        """Last lines of the step `failed`; if none has failed, of the step that began last."""
        step = self._failed or (self._steps[-1] if self._steps else None)
        return list(step.last_lines) if step else []

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each step, in the order of the steps. Steps of the same name are added."""
        seconds: dict[str, float] = {}
        for step in self._steps:
            if step.state != "running":
                seconds[step.name] = seconds.get(step.name, 0.0) + step.seconds
        return seconds

    def __enter__(self) -> "RunView":
        self._display.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for step in self._steps:
            if step.state == "running":
                step.state, step.seconds = "stopped", time.monotonic() - step.started
                step.training.stop()
        self._display.end()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has an attribute
        """Return the encoding for programs that ask a stream for it."""
        return "utf-8"

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str, /) -> int:
        """Add text. Complete lines are shown."""
        thread = threading.get_ident()
        *lines, self._parts[thread] = (self._parts[thread] + text).split("\n")
        for line in lines:
            self._add_line(line)
        if lines:
            self._display.update()
        return len(text)

    def _add_line(self, line: str) -> None:
        fact = parse_line(line)
        is_sample = isinstance(fact, LogEntry) and split_sample(fact.message)[1] is not None
        if self._log and not is_sample:
            self._log.write(_COLOR.sub("", line) + "\n")
        match fact:
            case PipelineStarted():
                self._failed = None
            case StepStarted(step):
                self._start_step(step)
            case StepEnded(step, succeeded):
                self._end_step(step, succeeded)
            case LogEntry() as entry:
                running = self._step()
                if running and not is_sample:
                    running.last_lines.append(str(entry))
                self._show_entry(entry, running)
            case None:
                self._show_other(line)

    def _step(self) -> _Step | None:
        """Return the step that this thread runs or ran last. kfp has a thread for each item of a ParallelFor."""
        thread = threading.get_ident()
        return next((step for step in reversed(self._steps) if step.thread == thread), None)

    def _start_step(self, name: str) -> None:
        self._steps.append(_Step(name))
        self._print_line(f"{name} …")

    def _end_step(self, name: str, succeeded: bool) -> None:
        step = self._step()
        if step is None or step.name != name:
            step = _Step(name)
            self._steps.append(step)
        step.state = "succeeded" if succeeded else "stopped" if self._is_interrupted() else "failed"
        step.seconds = time.monotonic() - step.started
        self._print_line(f"{name}: {'done' if succeeded else step.state} after {step.seconds:.1f} s")
        if step.state == "failed":
            self._failed = self._failed or step
        elif step.state == "stopped":
            step.training.stop()

    def _show_entry(self, entry: LogEntry, step: _Step | None) -> None:
        if step:
            step.training.add_entry(entry, time.time())
        if entry.level != "INFO":
            # Above the table.
            style = "red" if entry.level == "ERROR" else "yellow"
            self._print(f"  {entry.replica}: {entry.message}", style)
        elif entry.replica != JOB and parse_progress(entry.message):
            self._print_line(f"  {entry.replica}: {entry.message}")

    def _show_other(self, line: str) -> None:
        """Show a line of a step, or of the program that runs the pipeline."""
        if _NOISE.search(line):
            return
        step = self._step()
        if step and step.state == "running":
            step.last_lines.append(line.strip())
            is_shown = self._echo
        else:
            # kfp prints the outputs of a step after its end, indented as well.
            is_shown = not line.startswith(_INDENT)
        if is_shown:
            self._print(line.removeprefix(_INDENT))

    def _print_line(self, text: str) -> None:
        """Print a line that replaces the table where no table is shown."""
        if isinstance(self._display, _NoDisplay):
            self._print(text)

    def _print(self, text: str, style: str | None = None) -> None:
        with suppress(BrokenPipeError):
            self._console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    def _render(self) -> Table:
        groups = [(step.progress(), list(step.training.replicas.values())) for step in self._steps]
        # A notebook scrolls.
        return progress_table(groups, time.time(), 1000 if self._console.is_jupyter else self._console.height - 1)


def _display(console: Console, render: Callable[[], Table]) -> Display:
    if console.is_jupyter:
        return _Notebook(render)
    return _Terminal(console, render) if console.is_terminal else _NoDisplay()
