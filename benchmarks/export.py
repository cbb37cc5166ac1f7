"""Measure uploads and copies of models: `make bench-export` prints the results and writes benchmarks/export.md."""

import argparse
import json
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import partial
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path

from measure import table

from kfp_distributed.storage import embedded_object_store, open_store
from kfp_distributed.storage.credentials import Credentials, credentials_from_environment
from kfp_distributed.storage.embedded import rclone

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import environments  # In tests/.

_RUNS = 3
_LARGE_BYTES, _SMALL_BYTES, _SMALL_FILES = 2 * 10**9, 20_000, 10_000
_OURS = "kfp-distributed"
_BUCKET = "kfp-distributed-benchmark"
_FOLDER = Path(__file__).parent
_PAGE = Path(__file__).with_suffix(".md")
_TEXT = """\
# Uploads of models

`make bench-export` runs these measurements and writes this page. Latest run: {day}, Python {python}, minio-py {minio},
s5cmd {s5cmd}, rclone {rclone}, obstore {obstore}, {cores} cores of a shared machine with a load of {load} at the
beginning and {load_after} at the end. Compare the rows of one run, not different runs.

The store is {store}.
It runs on the same machine and uses the same processors. The programs take turns, and the objects of each run are
deleted after it. The times are medians of {runs} runs with the shortest and the longest. The time of a Python program
is without imports, which a step has done before. The processor time of the process includes them, and not that of the
store.

{table}

- *kfp-distributed*: how `export_model` uploads the files of a local folder, and how it copies a model that is in the
  same store. It also computes the SHA-256 of each file.
- *s5cmd*: `s5cmd cp`, with its defaults.
- *rclone*: `rclone copy` with 16 transfers and 8 parts at the same time. Its defaults of 4 are not faster here.
- *minio-py*: uploads by minio-py alone, as many at the same time as kfp-distributed. Python computes the SHA-256 of
  each file.
- *obstore*: uploads by the Rust library `object_store`, as many at the same time as kfp-distributed. Python computes
  the SHA-256 of each file.
- *Bytes*: those that pass through the connections of kfp-distributed in both directions, headers included.

## The goal

kfp-distributed should be at least as fast as the better of s5cmd and rclone. Another goal was set for obstore: to
replace minio-py, it should be 1.5 times as fast with small files
([what was decided](../docs/explanation/transfers.md)).

{goals}
"""


@dataclass(frozen=True)
class Case:
    """Something to measure.

    Attributes:
        name: Its name in the table.
        source: Local file or folder, or bucket/prefix of the objects to copy.
        ways: The command of each program by name. Their arguments are the source and the target bucket/prefix.
    """

    name: str
    source: str
    ways: Mapping[str, Callable[[str, str], Sequence[object]]]


@dataclass(frozen=True)
class Measured:
    """One run.

    Attributes:
        seconds: Time of the process, or of a Python program without its imports.
        processor: Processor time of the process in seconds.
        mebibytes: Its peak memory in MiB.
        moved: Bytes that passed through its connections; 0 if they are not counted.
    """

    seconds: float
    processor: float
    mebibytes: float
    moved: int = 0


# A process starts with the peak memory of its parent, so a small process starts what is measured.
_LAUNCH = """
import json, os, subprocess, sys, time
begin = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
output = process.stdout.read()
_, status, usage = os.wait4(process.pid, 0)
lines = output.decode().splitlines()
peak = usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
print(json.dumps([time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, peak, *lines[-1:]]))
sys.exit(os.waitstatus_to_exitcode(status))
"""


def run(argv: Sequence[object], environment: Mapping[str, str]) -> Measured:
    """Run a command.

    Raises:
        RuntimeError: It failed. The message has the end of its errors.
    """
    launch = [sys.executable, "-S", "-c", _LAUNCH, *map(str, argv)]
    done = subprocess.run(launch, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{argv} exited with {done.returncode}:\n{done.stderr[-4000:]}")
    seconds, processor, mebibytes, *printed = json.loads(done.stdout)
    if not printed:
        return Measured(seconds, processor, mebibytes)
    seconds, moved = json.loads(printed[0])
    return Measured(seconds, processor, mebibytes, moved)


def write_files(folder: Path, scale: float) -> tuple[Path, Path]:
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
def object_store(folder: Path) -> Iterator[tuple[str, Credentials]]:
    """Yield name and credentials of the store of AWS_ENDPOINT_URL, or of an embedded server if it is not set."""
    if url := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        credentials = credentials_from_environment()
        yield f"the server of AWS_ENDPOINT_URL ({_server_of(url)})", credentials
        return
    with embedded_object_store(folder / "objects") as server:
        yield "the embedded server, `rclone serve s3`", server.credentials()


def _server_of(url: str) -> str:
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(url) as response:
            return response.headers.get("Server") or "unnamed"
    except urllib.error.HTTPError as error:
        return error.headers.get("Server") or "unnamed"


def environment_of(credentials: Credentials) -> dict[str, str]:
    """Return the environment variables with which each program uses a store."""
    url = f"http{'s' * credentials.secure}://{credentials.endpoint}"
    names = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ENDPOINT_URL_S3": url,
        "AWS_ACCESS_KEY_ID": credentials.access_key,
        "AWS_SECRET_ACCESS_KEY": credentials.secret_key,
        "AWS_SESSION_TOKEN": credentials.session_token,
        "AWS_REGION": credentials.region or "us-east-1",
        "S3_ENDPOINT_URL": url,
        "RCLONE_CONFIG": os.devnull,
        "RCLONE_S3_PROVIDER": "Other",
        "RCLONE_S3_ENDPOINT": url,
        "RCLONE_S3_ENV_AUTH": "true",
        "RCLONE_S3_REGION": credentials.region or "us-east-1",
    }
    own = {name: value for name, value in os.environ.items() if not name.startswith("RCLONE_")}
    return {**own, **{name: value for name, value in names.items() if value}}


def find_tools() -> dict[str, str]:
    """Return the path of s5cmd, of rclone, and of a Python with obstore; of those that this machine can have."""
    tools = {"rclone": rclone()}
    requirements = (_FOLDER / "export.txt").read_text(encoding="utf-8").split()

    def create(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *requirements], check=True)

    try:
        python = environments._images.ensure_environment("export", [sys.version_info[:3], requirements], create)
    except subprocess.CalledProcessError as error:
        print(f"no environment with {' and '.join(requirements)}: {error}", file=sys.stderr)
        found = shutil.which("s5cmd")
        return {**tools, **({"s5cmd": found} if found else {})}
    # The script in bin/ starts this program by Python, which takes longer than the program.
    (program,) = python.parents[1].glob("lib/*/site-packages/s5cmd/bin/s5cmd")
    return {**tools, "s5cmd": str(program), "obstore": str(python)}


def cases(tools: Mapping[str, str], large: Path, small: Path, stored: str) -> list[Case]:
    """Return what is measured.

    Args:
        tools: Result of `find_tools`.
        large: The large file.
        small: The folder of small files.
        stored: bucket/prefix with the same as objects: below large/ and small/.
    """
    own = [sys.executable, _FOLDER / "export_ways.py"]
    s5cmd, fast = [tools.get("s5cmd", ""), "--log", "error", "cp"], ["--transfers", 16, "--s3-upload-concurrency", 8]
    copy_rclone = [tools["rclone"], "copy", *fast]
    uploads = {
        _OURS: lambda source, target: [*own, "upload", source, target],
        "s5cmd": lambda source, target: [*s5cmd, f"{source}/" if Path(source).is_dir() else source, f"s3://{target}/"],
        "rclone": lambda source, target: [*copy_rclone, source, f":s3:{target}"],
        "minio-py": lambda source, target: [*own, "minio-py", source, target],
        "obstore": lambda source, target: [tools.get("obstore"), own[1], "obstore", source, target],
    }
    copies = {
        _OURS: lambda source, target: [*own, "copy", source, target],
        "s5cmd": lambda source, target: [*s5cmd, f"s3://{source}/*", f"s3://{target}/"],
        "rclone": lambda source, target: [*copy_rclone, f":s3:{source}", f":s3:{target}"],
    }
    size, count = large.stat().st_size, sum(path.is_file() for path in small.rglob("*"))
    one, many = f"1 file of {size / 10**9:g} GB", f"{count:,} files of {_SMALL_BYTES // 1000} KB"
    available = {_OURS, "minio-py", *tools}
    uploads, copies = ({way: ways[way] for way in ways if way in available} for ways in (uploads, copies))
    return [
        Case(f"upload of {one}", str(large), uploads),
        Case(f"upload of {many}", str(small), uploads),
        Case(f"copy of {one} in the store", f"{stored}/large", copies),
        Case(f"copy of {many} in the store", f"{stored}/small", copies),
    ]


def measure_case(
    case: Case, runs: int, environment: Mapping[str, str], clear: Callable[[], int]
) -> dict[str, list[Measured]]:
    """Run each program of a case. After each run, `clear` deletes its objects and returns their number."""
    measured: dict[str, list[Measured]] = {way: [] for way in case.ways}
    counts = set()
    for number in range(runs):
        for way in [*case.ways] if number % 2 == 0 else [*reversed(case.ways)]:
            os.sync()  # What an earlier run wrote is not written during this one.
            measured[way].append(run(case.ways[way](case.source, f"{_BUCKET}/target"), environment))
            counts.add(clear())
            print(f"{case.name}, {way}: {measured[way][-1].seconds:.2f} s", file=sys.stderr, flush=True)
    if len(counts) != 1:
        raise RuntimeError(f"{case.name}: the programs stored different numbers of objects: {counts}")
    return measured


def rows(case: Case, measured: Mapping[str, Sequence[Measured]]) -> list[list[str]]:
    """Return the rows of a case in the table."""
    lines = []
    for way, runs in measured.items():
        seconds = [run.seconds for run in runs]
        processor, peak = statistics.median(run.processor for run in runs), max(run.mebibytes for run in runs)
        times = f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"
        moved = f"{max(run.moved for run in runs):,}" if way == _OURS else ""
        lines.append([case.name, way, times, f"{processor:.2f} s", f"{peak:.0f} MiB", moved])
    return lines


def goal(case: Case, measured: Mapping[str, Sequence[Measured]]) -> str:
    """Return the comparison of a case with the better of the other programs."""
    medians = {way: statistics.median(run.seconds for run in runs) for way, runs in measured.items()}
    name, seconds = min(((way, medians[way]) for way in ("s5cmd", "rclone") if way in medians), key=itemgetter(1))
    result = "reached" if medians[_OURS] <= seconds else "missed"
    text = f"- {case.name}: {seconds / medians[_OURS]:.2f} times as fast as {name}: {result}."
    if "obstore" in medians:
        text += f" obstore: {medians['minio-py'] / medians['obstore']:.2f} times as fast as minio-py."
    return text


def delete_all(credentials: Credentials, prefix: str) -> int:
    """Delete the objects below a prefix of the bucket. Return their number."""
    store = open_store(f"s3://{_BUCKET}/{prefix}", credentials)
    keys = [entry.key for entry in store.list()]
    store.delete(keys)
    return len(keys)


def measure_all(folder: Path, scale: float, runs: int, tools: Mapping[str, str]) -> tuple[str, str, str]:
    """Measure all cases. Return the name of the store, the table and the list of the comparisons."""
    large, small = write_files(folder, scale)
    lines, goals = [], []
    with object_store(folder) as (name, credentials):
        print(f"the store is {name}", file=sys.stderr, flush=True)
        store = open_store(f"s3://{_BUCKET}/stored", credentials)
        store.make_bucket()
        delete_all(credentials, "")  # A run that was killed left its objects.
        environment = environment_of(credentials)
        try:
            for case in cases(tools, large, small, f"{_BUCKET}/stored"):
                if case.source.startswith(_BUCKET) and large.exists():
                    store.upload(large, "large/large.bin")
                    store.upload_folder(small, "small")
                    large.unlink()  # The copies need the space on the disk.
                measured = measure_case(case, runs, environment, partial(delete_all, credentials, "target"))
                lines += rows(case, measured)
                goals.append(goal(case, measured))
        finally:
            delete_all(credentials, "")
    return name, table(["", "program", "time", "processor time", "peak memory", "bytes"], lines), "\n".join(goals)


def versions(tools: Mapping[str, str]) -> dict[str, str]:
    """Return the version of each tool; "-" of one that is missing, which is not measured."""
    commands = {
        "s5cmd": ["version"],
        "rclone": ["version"],
        "obstore": ["-c", "import obstore; print(obstore.__version__)"],
    }
    texts = {
        tool: subprocess.run([tools[tool], *words], capture_output=True, text=True, check=True).stdout
        for tool, words in commands.items()
        if tool in tools
    }
    return {tool: (re.findall(r"[0-9]+[.][0-9.]+", texts.get(tool, "")) or ["-"])[0] for tool in commands}


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=_RUNS, help=f"Runs of each program. Default: {_RUNS}.")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="Factor of the size of the file and of the number of files. Default: 1"
    )
    arguments = parser.parse_args()
    tools, load = find_tools(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        name, cells, goals = measure_all(Path(folder), arguments.scale, arguments.runs, tools)
    text = _TEXT.format(
        day=date.today(),
        python=platform.python_version(),
        minio=version("minio"),
        **versions(tools),
        cores=os.cpu_count(),
        load=f"{load:.1f}",
        load_after=f"{os.getloadavg()[0]:.1f}",
        store=name,
        runs=arguments.runs,
        table=cells,
        goals=goals,
    )
    _PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
