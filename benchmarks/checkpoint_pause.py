"""Measure how long `record_epoch` and `flush` stop a training with a large checkpoint."""

import sys
import tempfile
from pathlib import Path

from measure import header, log, measure, parser, table, write_page

from kfp_distributed.storage.object_stores.embedded import EmbeddedStore, embedded_object_store

_SIZES = (2 * 10**8, 2 * 10**9)
_WAYS = ("record_epoch", "flush")
_HANGS = 30
_TEXT = """\
# The pause of a checkpoint

{header}

A program writes a checkpoint of one file by a rename, and then stores it in a local S3 server on the same disk. The
cells are the time for which the program stands still. Each cell is a new process and an empty store.

- *record_epoch*: takes a snapshot and uploads it in the background. The longest pause of three epochs in a row. The
  goal is less than 1 s. The stored checkpoint is that of the last epoch: the program checks this at its end.
- *flush*: waits for the object store, as each epoch did in earlier versions.
- *store hangs*: the server is stopped for {hangs} s, or until the three epochs have ended. It accepts connections, but
  answers no request.

{table}
"""

_PROGRAM = """
import json, os, signal, sys, threading, time
from pathlib import Path
from kfp_distributed.storage.opener import open_store
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import complete_checkpoints, parse_manifest
from kfp_distributed.trainers.runtime.checkpoints.folder_uploads import delete_snapshots
from kfp_distributed.trainers.runtime.job_description import JobDescription
from kfp_distributed.trainers.runtime.outputs.results import keep_results
from kfp_distributed.trainers.sync import flush, record_epoch
way, size, server, hangs, seconds = sys.argv[1], *map(int, sys.argv[2:])
names = "checkpoint_dir", "metrics_dir", "tensorboard_dir"
folders = {name: Path(name).absolute() for name in names}
for folder in folders.values():
    folder.mkdir()
uris = {f"{name}_uri": f"s3://bucket/{name}" for name in ("train", "validation", "model", "checkpoint", "metrics")}
job = JobDescription(
    name="job", program={}, parameters={}, leader="worker-0", data_replicas=("worker-0",), parameter_servers=0, **uris
)
keep_results(job, True, False, folders)
def write(epoch):
    with Path("new").open("wb") as file:
        for start in range(0, size, 10**6):
            file.write(f"{epoch:08d}".encode() * (10**6 // 8))
    Path("new").replace(folders["checkpoint_dir"] / "weights")
pauses = []
if hangs:
    write(0)
    os.kill(server, signal.SIGSTOP)
    resume = lambda: os.kill(server, signal.SIGCONT)
    if way == "flush":
        threading.Timer(seconds, resume).start()
for epoch in (1, 2, 3) if way == "record_epoch" else (1,):
    write(epoch)
    begin = time.perf_counter()
    if way == "flush":
        flush()
    else:
        record_epoch(folders["metrics_dir"] / "training.json", "worker-0", epoch, 3, {"loss": 1})
    pauses.append(time.perf_counter() - begin)
if hangs and way == "record_epoch":
    resume()
while not flush():
    pass
store = open_store(job.checkpoint_uri)
newest = complete_checkpoints(store)[0]
(file,) = parse_manifest(store.read(f"{newest}.json"))[0]
(stored,) = Path("..", "objects", "bucket", "checkpoint", newest).iterdir()
with stored.open("rb") as stream:
    assert (file.size, int(stream.read(8))) == (size, epoch), (file, newest)
delete_snapshots()
print(json.dumps([max(pauses)]))
"""


def _pause(way: str, size: int, hangs: int, folder: Path) -> str:
    """Return the longest time for which a program with a checkpoint of so many bytes stands still.

    Args:
        way: What it calls.
        size: Bytes of the checkpoint.
        hangs: For how many seconds the store hangs.
        folder: Folder of the store and of the program.
    """
    with tempfile.TemporaryDirectory(dir=folder) as work, embedded_object_store(Path(work, "objects")) as store:
        Path(work, "objects", "bucket").mkdir()
        Path(work, "replica").mkdir()
        arguments = [way, str(size), str(_process_of(store)), str(int(hangs > 0)), str(hangs)]
        environment = {**store.environment(), "PYTHONPATH": ":".join(filter(None, sys.path))}
        argv = [sys.executable, "-c", _PROGRAM, *arguments]
        (seconds,) = measure(argv, environment, Path(work, "replica")).printed
    log(f"{size:,} bytes, hangs {hangs} s, {way}: {seconds:.3f} s")
    return f"{seconds:.3f} s"


def _process_of(store: EmbeddedStore) -> int:
    end = f"\0{store.folder}\0".encode()
    (process,) = (file.parent.name for file in Path("/proc").glob("[0-9]*/cmdline") if file.read_bytes().endswith(end))
    return int(process)


def main() -> None:
    """Measure, print the table and write the page."""
    arguments = parser(__doc__, "checkpoint_pause.md")
    arguments.add_argument("--scale", type=float, default=1, help="factor of the bytes of the checkpoints (default: 1)")
    arguments.add_argument("--hangs", type=int, default=_HANGS, help=f"seconds of a hanging store (default: {_HANGS})")
    options, rows = arguments.parse_args(), []
    with tempfile.TemporaryDirectory() as folder:
        for size in (int(size * options.scale) // 10**6 * 10**6 for size in _SIZES):
            for store, hangs in {"fast": 0, "hangs": options.hangs}.items():
                cells = [_pause(way, size, hangs, Path(folder)) for way in _WAYS]
                rows.append([f"{size / 10**9:g} GB", store, *cells])
    measured = table(["checkpoint", "store", *_WAYS], rows)
    write_page(
        options.page,
        _TEXT.format(header=header("bench-checkpoints", {}, "columns"), hangs=options.hangs, table=measured),
    )


if __name__ == "__main__":
    main()
