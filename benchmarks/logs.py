"""Measure the logs of 3, 300 and 1,000 replicas, and write benchmarks/logs.md: `make bench-logs`.

No cluster is needed: `StubApi` serves the job, its pods and their logs as fast as they are read.
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

from kfp_distributed.cluster_api.client import LOG_CONNECTIONS

_README = Path(__file__).parent / "logs.md"
_FOLLOWERS = Path(__file__).parent / "followers.py"
_LINE = re.compile(rb"(?:\S+Z INFO |\[Pod \S*-)(worker-\d+)(?:\]:)? line (\d+) ")
_TEXT = """\
# The logs of many replicas

`make bench-logs` runs these measurements and writes this page. Latest run: {day}, 2 cores of a busy machine, which also
runs the fake API server (`stub/stub_api.py`). Compare the rows of one run, not different runs.

Each replica prints its lines of 90 characters as fast as they are read. The job ends when the last line has been read.
The train step runs its complete `launch`. The public SDK, kubeflow-training {version}, creates the job and calls
`get_job_logs` for all pods with `follow`, which starts one thread and one connection for each pod, then
`wait_for_job_conditions`. Both print to a file. The seconds are those from the creation of the job to the end of the
process. Memory and processor time are those of the whole process. Its start takes {start:.1f} s of the step's processor
time.

{rows}

*Lost* and *duplicated* count the lines in the file. The train step reads the logs over at most {connections}
connections, which 300 and 1,000 replicas share. With as many connections as replicas, 1,000 x 1,000 lines took the same
processor time and 342 instead of 164 MiB.

Requests: after the end of a container, the step requests its log once more, because the connection may have broken. So
it makes two requests for each log. In the last row of the step, {requests} others were for pods, for example after the
end of a followed log, and for the job.
"""


class _Case(NamedTuple):
    program: str
    replicas: int
    lines: int
    cut: bool = False


_CASES = (
    _Case("step", 3, 10_000),
    _Case("sdk", 3, 10_000),
    _Case("step", 300, 1_000),
    _Case("step", 300, 1_000, cut=True),
    _Case("step", 1_000, 10_000),
    _Case("sdk", 1_000, 10_000),
)
_NAMES = {"step": "train step", "sdk": "public SDK"}


class _Result(NamedTuple):
    seconds: float
    measured: Measured
    requests: Counter[str]
    lost: int
    duplicated: int


def main() -> None:
    """Run the benchmark from the command line."""
    rows, others = [], 0
    for case in _CASES:
        result = _run(case)
        if case.program == "step":
            others = result.requests.total() - result.requests["log"]
        rows.append(
            [
                _NAMES[case.program] + (", with one broken connection for each log" if case.cut else ""),
                f"{case.replicas} x {case.lines:,}",
                f"{result.seconds:.1f} s",
                f"{case.replicas * case.lines / result.seconds:,.0f}",
                f"{result.measured.cpu_seconds:.1f} s",
                f"{result.measured.peak_mib:.0f} MiB",
                f"{result.requests.total():,}",
                f"{result.lost:,}",
                f"{result.duplicated:,}",
            ]
        )
        print(*rows[-1], sep=" | ", flush=True)
    header = [
        "",
        "replicas x lines",
        "seconds",
        "lines/s",
        "processor time",
        "peak memory",
        "requests",
        "lost",
        "duplicated",
    ]
    start = _run(_Case("step", 1, 1)).measured.cpu_seconds
    text = _TEXT.format(
        day=date.today().isoformat(),
        version=VERSION,
        rows=table(header, rows),
        requests=others,
        start=start,
        connections=LOG_CONNECTIONS,
    )
    _README.write_text(text, encoding="utf-8")
    print(text)


def _run(case: _Case) -> _Result:
    python = {"step": Path(sys.executable), "sdk": sdk_python()}[case.program]
    stub = StubApi(case.lines, case.cut)
    with tempfile.TemporaryFile() as output:
        measured = measure([python, _FOLLOWERS, case.program, str(stub.port), str(case.replicas)], output=output)
        ended = time.monotonic()
        requests, created = stub.end()
        output.seek(0)
        lost, duplicated = _count_lines(output, case)
    return _Result(ended - created, measured, requests, lost, duplicated)


def _count_lines(output: Iterable[bytes], case: _Case) -> tuple[int, int]:
    """Return the numbers of lost and of duplicated lines."""
    times: dict[bytes, bytearray] = defaultdict(lambda: bytearray(case.lines))
    for line in output:
        if match := _LINE.match(line):
            times[match[1]][int(match[2])] += 1
    distinct = sum(len(counts) - counts.count(0) for counts in times.values())
    printed = sum(sum(counts) for counts in times.values())
    return case.replicas * case.lines - distinct, printed - distinct


if __name__ == "__main__":
    main()
