"""Measures what it takes to show all that 3 and 300 replicas print: `make bench-logs`; writes benchmarks/logs.md.

It needs no cluster: `StubApi` serves the job, its pods and their logs as fast as they are read.
"""

import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import NamedTuple

from measure import Measured, measure, table
from sdk import VERSION, sdk_python
from stub.stub_api import StubApi

_README = Path(__file__).parent / "logs.md"
_FOLLOWERS = Path(__file__).parent / "followers.py"
_LINE = re.compile(rb"(?:\S+Z INFO |\[Pod \S*-)(worker-\d+)(?:\]:)? line (\d+) ")
_TEXT = """\
# The logs of many replicas

`make bench-logs` measures this anew and writes it here. Latest: {day}, 2 cores of a busy machine, which the API
server's stand-in (`stub/stub_api.py`) shares: compare rows, not days.

Each replica prints its lines, of 90 characters, as fast as they are read; the job is done when the last one was. The
train step runs its whole `launch`; beside it the public SDK, kubeflow-training {version}: create, `get_job_logs` of
all pods with `follow`, `wait_for_job_conditions`. Both print into a file. Seconds are those from the job's creation to
the end of the process; memory and processor time are those of the whole process, its start included, which takes the
step {start:.1f} s of the latter.

{rows}

Requests: when the connection to a log has ended the step looks at the pod and asks for the log once more, because an
end of the connection may be a break. So there are three for each replica, and {requests} others.
"""


class _Case(NamedTuple):
    who: str
    replicas: int
    lines: int
    cut: bool = False


_CASES = (
    _Case("step", 3, 10_000),
    _Case("sdk", 3, 10_000),
    _Case("step", 300, 1_000),
    _Case("step", 300, 1_000, cut=True),
    _Case("step", 300, 10_000),
    _Case("sdk", 300, 10_000),
)
_NAMES = {"step": "train step", "sdk": "public SDK"}


class _Result(NamedTuple):
    seconds: float
    measured: Measured
    requests: Counter[str]
    lost: int
    doubled: int


def main() -> None:
    """The command line."""
    rows, others = [], 0
    for case in _CASES:
        result = _run(case)
        if case.who == "step":
            others = result.requests.total() - result.requests["log"] - case.replicas
        rows.append(
            [
                _NAMES[case.who] + (", each log's connection broken once" if case.cut else ""),
                f"{case.replicas} x {case.lines:,}",
                f"{result.seconds:.1f} s",
                f"{case.replicas * case.lines / result.seconds:,.0f}",
                f"{result.measured.cpu_seconds:.1f} s",
                f"{result.measured.peak_mib:.0f} MiB",
                f"{result.requests.total():,}",
                f"{result.lost:,}",
                f"{result.doubled:,}",
            ]
        )
        print(*rows[-1], sep=" | ", flush=True)
    header = ["", "replicas x lines", "seconds", "lines/s", "processor", "peak memory", "requests", "lost", "doubled"]
    start = _run(_Case("step", 1, 1)).measured.cpu_seconds
    text = _TEXT.format(
        day=date.today().isoformat(), version=VERSION, rows=table(header, rows), requests=others, start=start
    )
    _README.write_text(text, encoding="utf-8")
    print(text)


def _run(case: _Case) -> _Result:
    python = {"step": Path(sys.executable), "sdk": sdk_python()}[case.who]
    stub = StubApi(case.lines, case.cut)
    with tempfile.TemporaryFile() as output:
        measured = measure([python, _FOLLOWERS, case.who, str(stub.port), str(case.replicas)], output=output)
        ended = time.monotonic()
        requests, created = stub.end()
        output.seek(0)
        lost, doubled = _judge(output, case)
    return _Result(ended - created, measured, requests, lost, doubled)


def _judge(output: Iterable[bytes], case: _Case) -> tuple[int, int]:
    """How many lines are not there, and how many more than once."""
    times: dict[bytes, bytearray] = defaultdict(lambda: bytearray(case.lines))
    for line in output:
        if found := _LINE.match(line):
            times[found[1]][int(found[2])] += 1
    there = sum(len(each) - each.count(0) for each in times.values())
    printed = sum(sum(each) for each in times.values())
    return case.replicas * case.lines - there, printed - there


if __name__ == "__main__":
    main()
