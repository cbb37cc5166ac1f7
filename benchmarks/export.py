"""Measure uploads and copies of models, beside s5cmd and rclone."""

import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path

import urllib3
from comparators import program_version, s5cmd
from measure import Command, Measured, header, installed, log, measure, parser, spread, table, take_turns, write_page

from kfp_distributed.storage import embedded_object_store, open_store
from kfp_distributed.storage.kubeflow.credentials import Credentials, credentials_from_environment
from kfp_distributed.storage.object_stores.embedded import rclone

_LARGE_BYTES, _SMALL_BYTES, _SMALL_FILES = 2 * 10**9, 20_000, 10_000
_OURS = "kfp-distributed"
_BUCKET = "kfp-distributed-benchmark"
_TEXT = """\
# Uploads of models

{header}

The store is {store}.
It runs on the same machine and uses the same processors. The programs take turns, and the objects of each run are
deleted after it. The times are medians of {runs} runs with the shortest and the longest. The time of kfp-distributed is
without imports, which a step has done before. The processor time of the process includes them, and not that of the
store.

{table}

- *kfp-distributed*: how `export_model` uploads the files of a local folder, and how it copies a model that is in the
  same store. It also computes the SHA-256 of each file.
- *s5cmd*: `s5cmd cp`, with its defaults.
- *rclone*: `rclone copy` with 16 transfers and 8 parts at the same time. Its defaults of 4 are not faster here.
- *Bytes*: those that pass through the connections of kfp-distributed in both directions, headers included.

## The goal

kfp-distributed should be at least as fast as the better of s5cmd and rclone.

{goals}
"""

# Arguments: "upload" or "copy", the source, and the target bucket/prefix. Prints the seconds without those of the
# imports, and the bytes that passed through its connections.
_PROGRAM = """
import json, socket, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

class CountedSocket(socket.socket):
    moved = 0
    def sendall(self, data, *flags):
        super().sendall(data, *flags)
        CountedSocket.moved += memoryview(data).nbytes
    def recv_into(self, *arguments):
        count = super().recv_into(*arguments)
        CountedSocket.moved += count
        return count

socket.socket = CountedSocket
from kfp_distributed.storage import open_store
way, source, target = sys.argv[1:]
begin = time.perf_counter()
store = open_store(f"s3://{target}")
if way == "copy":
    origin = open_store(f"s3://{source}")
    with ThreadPoolExecutor(64) as pool:
        list(pool.map(lambda state: store.copy(origin, state.key, state.key, state.etag, state.size), origin.states()))
elif Path(source).is_dir():
    store.upload_folder(source)
else:
    store.upload(source, Path(source).name)
print(json.dumps([time.perf_counter() - begin, CountedSocket.moved]))
"""


@dataclass(frozen=True)
class _Case:
    """Something to measure.

    Attributes:
        name: Its name in the table.
        source: Local file or folder, or bucket/prefix of the objects to copy.
        ways: The command of each program by name.
    """

    name: str
    source: str
    ways: Mapping[str, Command]


def _write_files(folder: Path, scale: float) -> tuple[Path, Path]:
    """Write the large file and the folder of small files, with random bytes. Return their paths."""
    large, small = folder / "large.bin", folder / "small"
    block = random.randbytes(10**6)
    with large.open("wb") as file:
        for number in range(int(_LARGE_BYTES * scale) // 10**6):
            file.write(number.to_bytes(8, "big") + block[8:])
    for number in range(int(_SMALL_FILES * scale)):
        path = small / f"{number // 100:03d}" / f"{number:05d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.randbytes(_SMALL_BYTES))
    return large, small


@contextmanager
def _object_store(folder: Path) -> Iterator[tuple[str, Credentials]]:
    """Yield the name and the credentials of the store of AWS_ENDPOINT_URL, or of a local one."""
    if url := os.environ.get("AWS_ENDPOINT_URL"):
        server = urllib3.request("GET", url).headers.get("Server", "unnamed")
        yield f"the server of AWS_ENDPOINT_URL ({server})", credentials_from_environment()
        return
    (folder / "objects").mkdir()
    with embedded_object_store(folder / "objects") as local:
        yield "the embedded server, `rclone serve s3`", local.credentials()


def _environment_of(credentials: Credentials) -> dict[str, str]:
    """Return the environment variables with which each program uses a store."""
    url = f"http{'s' * credentials.secure}://{credentials.endpoint}"
    names = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ENDPOINT_URL_S3": url,
        "AWS_ACCESS_KEY_ID": credentials.access_key,
        "AWS_SECRET_ACCESS_KEY": credentials.secret_key,
        "AWS_SESSION_TOKEN": credentials.session_token,
        "AWS_REGION": credentials.region or "us-east-1",
        "RCLONE_CONFIG": os.devnull,
        "RCLONE_S3_PROVIDER": "Other",
        "RCLONE_S3_ENDPOINT": url,
        "RCLONE_S3_ENV_AUTH": "true",
        "RCLONE_S3_REGION": credentials.region or "us-east-1",
    }
    own = {name: value for name, value in os.environ.items() if not name.startswith("RCLONE_")}
    return {**own, **{name: value for name, value in names.items() if value}}


def _cases(large: Path, small: Path) -> list[_Case]:
    """Return what is measured. The store has the same as objects, below stored/large and stored/small."""
    size, count = large.stat().st_size, sum(path.is_file() for path in small.rglob("*"))
    one, many = f"1 file of {size / 10**9:g} GB", f"{count:,} files of {_SMALL_BYTES // 1000} KB"
    target, stored = f"{_BUCKET}/target", f"{_BUCKET}/stored"
    own = [sys.executable, "-c", _PROGRAM]
    copy = [str(s5cmd()), "--log", "error", "cp"]
    fast = [rclone(), "copy", "--transfers", "16", "--s3-upload-concurrency", "8"]

    def case(name: str, way: str, source: str, of_s5cmd: str, of_rclone: str) -> _Case:
        ways: dict[str, Command] = {
            _OURS: [*own, way, source, target],
            "s5cmd": [*copy, of_s5cmd, f"s3://{target}/"],
            "rclone": [*fast, of_rclone, f":s3:{target}"],
        }
        return _Case(name, source, ways)

    def inside(what: str, source: str) -> _Case:
        return case(f"copy of {what} in the store", "copy", source, f"s3://{source}/*", f":s3:{source}")

    return [
        case(f"upload of {one}", "upload", str(large), str(large), str(large)),
        case(f"upload of {many}", "upload", str(small), f"{small}/", str(small)),
        inside(one, f"{stored}/large"),
        inside(many, f"{stored}/small"),
    ]


def _delete_all(credentials: Credentials, prefix: str = "") -> int:
    """Delete the objects below a prefix of the bucket. Return their number."""
    store = open_store(f"s3://{_BUCKET}/{prefix}", credentials)
    keys = [entry.key for entry in store.list()]
    store.delete(keys)
    return len(keys)


def _measure(case: _Case, runs: int, credentials: Credentials) -> dict[str, list[Measured]]:
    """Run each program of a case, and delete its objects after each run."""
    counts, environment = set(), _environment_of(credentials)

    def run(argv: Command, number: int) -> Measured:
        os.sync()  # What an earlier run wrote is not written during this one.
        measured = measure(argv, environment)
        counts.add(_delete_all(credentials, "target"))
        return measured

    ways: dict[str, Callable[[int], Measured]] = {way: partial(run, argv) for way, argv in case.ways.items()}
    log(case.name)
    measured = take_turns(ways, runs)
    if len(counts) != 1:
        raise RuntimeError(f"{case.name}: the programs stored different numbers of objects: {counts}")
    return measured


def _seconds(runs: Sequence[Measured]) -> list[float]:
    return [run.printed[0] if run.printed else run.seconds for run in runs]


def _row(case: _Case, way: str, runs: Sequence[Measured]) -> list[str]:
    processor, peak = statistics.median(run.cpu_seconds for run in runs), max(run.peak_mib for run in runs)
    moved = f"{max(run.printed[1] for run in runs):,}" if way == _OURS else ""
    return [case.name, way, spread(_seconds(runs)), f"{processor:.2f} s", f"{peak:.0f} MiB", moved]


def _goal(case: _Case, measured: Mapping[str, Sequence[Measured]]) -> str:
    """Return the comparison of a case with the better of the other programs."""
    medians = {way: statistics.median(_seconds(runs)) for way, runs in measured.items()}
    ours = medians.pop(_OURS)
    name, seconds = min(medians.items(), key=itemgetter(1))
    result = "reached" if ours <= seconds else "missed"
    return f"- {case.name}: {seconds / ours:.2f} times as fast as {name}: {result}."


def _measure_all(folder: Path, scale: float, runs: int) -> tuple[str, str, str]:
    """Measure all cases. Return the name of the store, the table and the list of the comparisons."""
    large, small = _write_files(folder, scale)
    rows, goals = [], []
    with _object_store(folder) as (name, credentials):
        store = open_store(f"s3://{_BUCKET}/stored", credentials)
        store.make_bucket()
        _delete_all(credentials)  # A run that was killed left its objects.
        try:
            for case in _cases(large, small):
                if case.source.startswith(_BUCKET) and large.exists():
                    store.upload(large, "large/large.bin")
                    store.upload_folder(small, "small")
                    large.unlink()  # The copies need the space on the disk.
                measured = _measure(case, runs, credentials)
                rows += [_row(case, way, of_way) for way, of_way in measured.items()]
                goals.append(_goal(case, measured))
        finally:
            _delete_all(credentials)
    return name, table(["", "program", "time", "processor time", "peak memory", "bytes"], rows), "\n".join(goals)


def main() -> None:
    """Measure, print the table and write the page."""
    arguments = parser(__doc__, "export.md", runs=3)
    arguments.add_argument("--scale", type=float, default=1, help="factor of the bytes and of the files (default: 1)")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        name, cells, goals = _measure_all(Path(folder), options.scale, options.runs)
    versions = {"s5cmd": program_version(s5cmd(), "version"), "rclone": program_version(rclone(), "version")}
    first = header("bench-export", {**installed("minio"), **versions})
    write_page(options.page, _TEXT.format(header=first, store=name, runs=options.runs, table=cells, goals=goals))


if __name__ == "__main__":
    main()
