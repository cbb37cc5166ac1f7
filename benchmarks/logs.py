"""Measure the logs of 3, 300 and 1,000 replicas.

No cluster is needed: `StubApi` serves the job, its pods and their logs as fast as they are read.
"""

import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from comparators import SDK, python_of, version_of
from measure import Command, Measured, header, log, measure, parser, table, write_page
from stub.stub_api import StubApi

from kfp_distributed.cluster_api.client import LOG_CONNECTIONS

_FOLDER = Path(__file__).parent
_LINE = re.compile(rb"(?:\S+Z INFO |\[Pod \S*-)(worker-\d+)(?:\]:)? line (\d+) ")
_TEXT = """\
# The logs of many replicas

{header}

The same cores run the fake API server (`stub/stub_api.py`). Each replica prints its lines of 90 characters as fast as
they are read. The job ends when the last line has been read. The train step runs its complete `launch`. The public SDK,
kubeflow-training, creates the job and calls `get_job_logs` for all pods with `follow`, which starts one thread and one
connection for each pod, then `wait_for_job_conditions`. Both print to a file. The seconds are those from the creation
of the job to the end of the process. Memory and processor time are those of the whole process. Its start takes
{start:.1f} s of the step's processor time.

{table}

*Lost* and *duplicated* count the lines in the file. The train step reads the logs over at most {connections}
connections, which 300 and 1,000 replicas share. With as many connections as replicas, 1,000 x 1,000 lines took the same
processor time and 342 instead of 164 MiB.

Requests: after the end of a container, the step requests its log once more, because the connection may have broken. So
it makes two requests for each log. In the last row of the step, {requests} others were for pods, for example after the
end of a followed log, and for the job.
"""
_COLUMNS = ("seconds", "lines/s", "processor time", "peak memory", "requests", "lost", "duplicated")


class _Case(NamedTuple):
    program: str
    replicas: int
    lines: int
    cut: bool = False


_CASES = (
    _Case("train step", 3, 10_000),
    _Case("public SDK", 3, 10_000),
    _Case("train step", 300, 1_000),
    _Case("train step", 300, 1_000, cut=True),
    _Case("train step", 1_000, 10_000),
    _Case("public SDK", 1_000, 10_000),
)


class _Result(NamedTuple):
    seconds: float
    measured: Measured
    requests: Counter[str]
    lost: int
    duplicated: int


def _run(case: _Case) -> _Result:
    programs: dict[str, Command] = {"train step": [sys.executable, _FOLDER / "log_follower.py"]}
    if case.program == "public SDK":
        programs["public SDK"] = [python_of(SDK), _FOLDER / "sdk_programs.py", "follow"]
    stub = StubApi(case.lines, case.cut)
    with tempfile.TemporaryFile() as output:
        measured = measure([*programs[case.program], str(stub.port), str(case.replicas)], output=output)
        requests, created = stub.end()
        output.seek(0)
        lost, duplicated = _count_lines(output, case)
    return _Result(measured.ended - created, measured, requests, lost, duplicated)


def _count_lines(output: Iterable[bytes], case: _Case) -> tuple[int, int]:
    """Return the numbers of lost and of duplicated lines."""
    times: dict[bytes, bytearray] = defaultdict(lambda: bytearray(case.lines))
    for line in output:
        if match := _LINE.match(line):
            times[match[1]][int(match[2])] += 1
    distinct = sum(len(counts) - counts.count(0) for counts in times.values())
    printed = sum(sum(counts) for counts in times.values())
    return case.replicas * case.lines - distinct, printed - distinct


def _row(case: _Case, result: _Result) -> list[str]:
    row = [
        case.program + (", with one broken connection for each log" if case.cut else ""),
        f"{case.replicas} x {case.lines:,}",
        f"{result.seconds:.1f} s",
        f"{case.replicas * case.lines / result.seconds:,.0f}",
        f"{result.measured.cpu_seconds:.1f} s",
        f"{result.measured.peak_mib:.0f} MiB",
        f"{result.requests.total():,}",
        f"{result.lost:,}",
        f"{result.duplicated:,}",
    ]
    log(" | ".join(row))
    return row


def main() -> None:
    """Measure, print the table and write the page."""
    arguments = parser(__doc__, "logs.md")
    arguments.add_argument("--cases", type=int, default=len(_CASES), help="only so many of the rows (default: all)")
    options = arguments.parse_args()
    results = [(case, _run(case)) for case in _CASES[: options.cases]]
    of_step = [result.requests for case, result in results if case.program == "train step"]
    text = _TEXT.format(
        header=header("bench-logs", {SDK: version_of(SDK)}),
        table=table(["", "replicas x lines", *_COLUMNS], [_row(*result) for result in results]),
        requests=of_step[-1].total() - of_step[-1]["log"],
        start=_run(_Case("train step", 1, 1)).measured.cpu_seconds,
        connections=LOG_CONNECTIONS,
    )
    write_page(options.page, text)


if __name__ == "__main__":
    main()
