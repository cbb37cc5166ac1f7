"""The line with a replica's resource usage, which it prints every 10 s and the train step reads. Pure."""

import re
from typing import NamedTuple

_LINE = re.compile(
    r"sample(?=.*=)"
    r"(?: memory=(?P<memory>\d+)MiB)?"
    r"(?: rows/s=(?P<rows>\d+(?:\.\d+)?))?"
    r"(?: gpu=(?P<gpu>\d+)%)?"
    r"(?: gpu_memory=(?P<gpu_memory>\d+)MiB)?"
    r"(?: rows=(?P<total_rows>\d+))?"
    r"(?: transferred=(?P<transferred>\d+)KiB)?"
    r"(?: store=(?P<store>\d+)s)?$"
)


class Sample(NamedTuple):
    """Resource usage of one replica at one moment. A value is None where it is unknown.

    Attributes:
        memory_mib: Resident memory of the replica's processes in MiB.
        rows_per_second: Training rows read per second since the previous sample.
        gpu_percent: Mean utilization of the replica's GPUs, from 0 to 100.
        gpu_memory_mib: Memory used on all of the replica's GPUs in MiB.
        rows: Training rows that the replica has read since its start.
        transferred_kib: KiB of data, checkpoints and model that it has downloaded and uploaded since its start.
        store_seconds: Seconds since the last answer of the object store; None if it has not answered since its start.
    """

    memory_mib: float | None = None
    rows_per_second: float | None = None
    gpu_percent: float | None = None
    gpu_memory_mib: float | None = None
    rows: int | None = None
    transferred_kib: int | None = None
    store_seconds: int | None = None


def format_sample(sample: Sample) -> str:
    """Return the line of a sample, such as "sample memory=512MiB rows/s=1200", or "" if no value is known."""
    rows = sample.rows_per_second
    values = {
        "memory={:.0f}MiB": sample.memory_mib,
        # Whole numbers from 10 on: more digits say nothing.
        "rows/s={}": None if rows is None else f"{rows:.0f}" if rows >= 10 else f"{rows:.1f}",
        "gpu={:.0f}%": sample.gpu_percent,
        "gpu_memory={:.0f}MiB": sample.gpu_memory_mib,
        "rows={}": sample.rows,
        "transferred={}KiB": sample.transferred_kib,
        "store={}s": sample.store_seconds,
    }
    known = [pattern.format(value) for pattern, value in values.items() if value is not None]
    return " ".join(["sample", *known]) if known else ""


def split_sample(line: str) -> tuple[str, Sample | None]:
    """Split a line that a replica printed into the program's own text and the sample.

    A sample is printed while the program may be in the middle of a line, so text may precede it.

    Returns:
        The line itself and None if it has no sample.
    """
    # Nearly all lines have none, and this search is faster than the pattern.
    if "sample " not in line or not (match := _LINE.search(line)):
        return line, None
    whole = match.group("memory", "gpu", "gpu_memory", "total_rows", "transferred", "store")
    memory, gpu, gpu_memory, *totals = (None if value is None else int(value) for value in whole)
    rows = None if match["rows"] is None else float(match["rows"])
    sample = Sample(memory, rows, gpu, gpu_memory, *totals)
    return line[: match.start()], sample
