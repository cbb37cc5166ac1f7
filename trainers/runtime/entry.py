"""The program of every replica, in a working directory of its own; run it with `python -m` and its module name."""

import __future__

import atexit
import importlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from kfp_distributed.storage.dataset import DatasetManifest, slices_of_rank
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.files import storable_files
from kfp_distributed.storage.model import FORMATS, MODEL_MANIFEST, ModelManifest
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.shards import fetch_manifest, fetch_shards
from kfp_distributed.storage.store import Store
from kfp_distributed.trainers.program import FOLDERS, Program, command_line, parse_program
from kfp_distributed.trainers.runtime import sync
from kfp_distributed.trainers.runtime.checkpoints import restore_checkpoint, save_checkpoint
from kfp_distributed.trainers.runtime.cluster import Cluster, Rank, processors, read_cluster, read_rank
from kfp_distributed.trainers.runtime.feed import keep_rows, write_records
from kfp_distributed.trainers.runtime.heartbeat import LOST_SECONDS_VARIABLE, end_when_lost
from kfp_distributed.trainers.runtime.horovodrun import end_without_launcher, is_elastic
from kfp_distributed.trainers.runtime.job import (
    EVALUATOR_METRICS,
    JOB_VARIABLE,
    PEAK_MEMORY,
    PEER_LOST,
    REPLICA_VARIABLE,
    TENSORBOARD,
    TRAINING_METRICS,
    JobDescription,
)
from kfp_distributed.trainers.runtime.launcher import CHILD_SECONDS
from kfp_distributed.trainers.runtime.peers import is_lost_peer
from kfp_distributed.trainers.runtime.sampling import print_samples, store_usage
from kfp_distributed.trainers.runtime.torchrun import has_ranks, is_rank

_SYNC_RETRY_SECONDS = 5.0
"""Checkpoints and metrics are sent again later anyway, so the training does not wait long for an absent store."""

_SAVE_SECONDS = 600.0
"""How long the leader keeps trying to save the model while the object store is away."""

_EVALUATOR_SECONDS = 60
"""How long it waits for the evaluator to score the last epoch."""

_LAUNCHER_LOST = 1
"""Exit code of a replica that ends because the train step is lost: the job is to fail for good."""

# Of the first working directory: a program may go to another one.
_PEAK_FILE = Path(PEAK_MEMORY).absolute()

_children: list[subprocess.Popen[bytes]] = []
_ending = threading.Lock()
"""Taken for ever when SIGTERM comes: what a command does then is not its end."""


def main() -> int:
    """Run this replica's part of the job; returns its exit code."""
    _end_on_sigterm()
    atexit.register(_keep_peak_memory)
    end_when_lost(lambda: _end(_LAUNCHER_LOST))
    job = JobDescription.from_json(Path(os.environ[JOB_VARIABLE]).read_text())
    program, cluster, rank = parse_program(job.program), read_cluster(os.environ), read_rank(os.environ)
    name = replica_name(os.environ, cluster, job, rank)
    os.environ[REPLICA_VARIABLE] = name
    if has_ranks(os.environ):
        os.environ.pop(LOST_SECONDS_VARIABLE, None)  # This process goes on reading the heartbeat.
        print_samples(range(int(os.environ["PET_NPROC_PER_NODE"])), adds_memory=False)
        return _run_child([sys.executable, "-m", "kfp_distributed.trainers.runtime.torchrun"])
    elastic = is_elastic(os.environ)
    _start_samples(job, rank, elastic)
    if elastic:
        end_without_launcher(lambda: _end(PEER_LOST))
    # Any rank of an elastic job may become the first, which alone writes what is kept.
    role, leads = name.rpartition("-")[0], elastic or (rank.rank == 0 if rank else name == job.leader)
    _prepare_tensorflow(program, cluster, rank, role)
    if rank:
        _enter_rank(rank.rank)
    is_served = program.kind != "command" and job.parameter_servers > 0
    if is_served and role == "ps":
        _serve(name)
    folders = {folder: Path(folder).absolute() for folder in FOLDERS}
    # Any rank of an elastic job may come to read any rows. A chief that runs a function of the user's may need the
    # data itself; ours leaves them to the workers.
    whole = (0, 1) if leads and program.kind != "trainer" else None
    reads = (0, 1) if elastic else part_of(name, job, rank) or whole
    manifest = _fetch_data(job, program.kind == "trainer", reads, folders)
    if is_served and role == "worker":
        _serve(name)
    if job.validation_uri:
        fetch_shards(job.validation_uri, folders["validation_dir"])
    restore_checkpoint(open_store(job.checkpoint_uri), folders["checkpoint_dir"])
    _keep_results(job, leads, role == "evaluator", folders)
    if program.kind != "trainer":
        threading.Thread(target=sync.flush_at_rest, daemon=True).start()
    given = {"validation_dir": job.validation_uri, "tensorboard_dir": job.tensorboard}
    paths = {folder: str(path) if given.get(folder, True) else "" for folder, path in folders.items()}
    os.environ.update({f"KFP_DISTRIBUTED_{folder.upper()}": path for folder, path in paths.items()})
    code = _run(program, paths, job)
    if code == 0 and leads and not (elastic and not any(folders["model_dir"].iterdir())):
        metrics = [{}, *sync.read_epochs(folders["metrics_dir"] / TRAINING_METRICS)][-1]
        epoch = metrics.pop("epoch", 0)
        _save_model(job, manifest, folders["model_dir"], metrics)
        if "evaluator" in cluster.addresses and program.kind == "trainer" and job.validation_uri:
            _await_evaluator(open_store(job.metrics_uri, retry_seconds=_SYNC_RETRY_SECONDS), epoch)
    # Whatever failed may have been writing.
    sync.flush(at_rest=code > 0)
    return code


def replica_name(
    environment: Mapping[str, str], cluster: Cluster, job: JobDescription, rank: Rank | None = None
) -> str:
    """Return this replica's name: as its rank or the runner says, or from TF_CONFIG or RANK, or the leader's."""
    if rank and not (is_rank(environment) or is_elastic(environment)):  # mpirun gives each the launcher's environment.
        return job.data_replicas[rank.rank * len(job.data_replicas) // rank.size]
    if environment.get(REPLICA_VARIABLE):
        return environment[REPLICA_VARIABLE]
    if cluster.addresses:
        return f"{cluster.role}-{cluster.index}"
    # Of an elastic job there may be more workers than were asked for at first.
    number = int(environment.get("RANK", 0))
    return f"worker-{number - 1}" if number else job.leader


def _start_samples(job: JobDescription, rank: Rank | None, elastic: bool) -> None:
    """Sample this process. Of the ranks of one replica only one prints."""
    local_rank = int(os.environ.get("LOCAL_RANK") or os.environ.get("HOROVOD_LOCAL_RANK") or 0)
    if is_rank(os.environ):
        store_usage(local_rank)  # The parent process prints.
    elif rank and not elastic:
        slots = max(1, rank.size // len(job.data_replicas))
        first = rank.rank // slots * slots
        if rank.rank == first:
            print_samples(range(first + 1, first + slots))
        else:
            store_usage(rank.rank)
    elif not (elastic and local_rank):
        print_samples()


def part_of(name: str, job: JobDescription, rank: Rank | None) -> tuple[int, int] | None:
    """Return which part of the rows a rank or replica reads, and of how many; None if it is none of the readers."""
    if rank:
        return rank.rank, rank.size
    if name in job.data_replicas:
        return job.data_replicas.index(name), len(job.data_replicas)
    return None


def _prepare_tensorflow(program: Program, cluster: Cluster, rank: Rank | None, role: str) -> None:
    """Set what TensorFlow reads of the environment when it is imported."""
    # Of Keras 3, `fit` does not work under the strategies of several workers; Horovod's TensorFlow has Keras 2.
    legacy_keras = program.kind == "trainer" or (program.kind == "function" and not rank and find_spec("tf_keras"))
    # 1 shows warnings and errors, 2 errors alone: under our trainers tf.data warns each worker of how Keras feeds it.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if program.kind == "trainer" else "1")
    neighbours = rank.local_size if rank else cluster.neighbours
    os.environ.update(tensorflow_environment(os.environ, neighbours, bool(legacy_keras), processors()))
    if "ps" in cluster.addresses:
        # As TensorFlow's guide to parameter servers asks: calls to a server that is not there wait for it.
        os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    if program.kind != "command" and cluster.addresses and role != "evaluator":
        os.environ["TF_CONFIG"] = cluster.training_config()


def _enter_rank(rank: int) -> None:
    """Give a rank lines and a folder of its own."""
    # A launcher marks what is written at once, and ranks may share one output: unbuffered, that would be each
    # argument of a print(), so each line is written with its end.
    sys.stdout.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    # The ranks of one replica are given the same folder.
    Path(f"rank-{rank}").mkdir(exist_ok=True)
    os.chdir(f"rank-{rank}")


def tensorflow_environment(
    environment: Mapping[str, str], neighbours: int, legacy_keras: bool, cpus: int
) -> dict[str, str]:
    """Return the settings that TensorFlow reads when it is imported; those that are already there stay.

    Processes on one machine share its processors instead of each starting a thread for all of them.

    Args:
        environment: What is set.
        neighbours: How many of the job's processes are on this machine.
        legacy_keras: Whether `tf.keras` is to be tf_keras, which is Keras 2.
        cpus: How many there are for all of them.
    """
    settings = {"TF_NUM_INTRAOP_THREADS": str(max(1, cpus // neighbours))}
    if legacy_keras:
        settings["TF_USE_LEGACY_KERAS"] = "1"
    return {name: value for name, value in settings.items() if name not in environment}


def _end_on_sigterm() -> None:
    """Make SIGTERM end the process with 143 at once, also while the main thread is inside TensorFlow's C++ code.

    Python runs signal handlers in the main thread between two bytecodes, which may never come; so a thread waits
    for the byte that the C handler writes. A command gets the signal, and we end when it has.
    """
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.set_wakeup_fd(writable)

    def wait() -> None:
        while os.read(readable, 1)[0] != signal.SIGTERM:
            pass
        _end(128 + signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def _end(code: int) -> NoReturn:
    """End this replica at once, its command first."""
    _ending.acquire()
    for child in _children:
        child.terminate()
        try:
            child.wait(CHILD_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
    try:
        # What it had left at rest by then is there when it is started again.
        sync.flush(at_rest=True)
        _keep_peak_memory()
    except Exception:  # noqa: BLE001 - such as no room for another thread: a replica that is to end must end
        traceback.print_exc()
    os._exit(code)


def _keep_peak_memory() -> None:
    """Tell the runner how large this process or one that it has waited for has been.

    What getrusage says of a process itself may be what its parent had when it was started. Where there is no /proc
    nothing is known.
    """
    with suppress(OSError):
        own = re.findall(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
        children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        # The ranks of one replica have the same file.
        before = int(_PEAK_FILE.read_text() or 0) if _PEAK_FILE.exists() else 0
        _PEAK_FILE.write_text(str(max([before, children, *map(int, own)])))


def _fetch_data(
    job: JobDescription, is_ours: bool, reads: tuple[int, int] | None, folders: Mapping[str, Path]
) -> DatasetManifest:
    """Make the folders that a program is given, with the training rows in them: of a rank, `reads`, of so many."""
    for folder in folders.values():  # A replica that is restarted may find what its predecessor left.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    manifest, train = fetch_manifest(job.train_uri), folders["train_dir"]
    slices = slices_of_rank(manifest, *reads) if reads else ()
    fetch_shards(job.train_uri, train, slices)
    if not is_ours:
        keep_rows(train, manifest, slices)
    elif job.parameter_servers and reads:
        write_records(train, manifest, slices)
    return manifest


def _serve(name: str) -> NoReturn:
    """Be a parameter server, or a worker that a chief drives: for ever."""
    import tensorflow as tf

    task = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    print(f"{name} serves", flush=True)
    tf.distribute.Server(task.cluster_spec(), task.task_type, task.task_id, "grpc").join()
    raise SystemExit("the TensorFlow server ended by itself")


def _keep_results(job: JobDescription, leads: bool, evaluates: bool, folders: Mapping[str, Path]) -> None:
    """Go on from the metrics that are there, and keep in object storage what this replica alone has to keep there."""
    checkpoints = open_store(job.checkpoint_uri, retry_seconds=_SYNC_RETRY_SECONDS)
    metrics = open_store(job.metrics_uri)
    name = EVALUATOR_METRICS if evaluates else TRAINING_METRICS
    # Without what is there, this replica would overwrite it: that is worth the wait.
    if metrics.exists(name):
        metrics.download(name, folders["metrics_dir"] / name)
    metrics = open_store(job.metrics_uri, retry_seconds=_SYNC_RETRY_SECONDS)
    # The metrics first: the epoch of a checkpoint that is stored is not done again.
    if leads or evaluates:
        sync.keep(
            folders["metrics_dir"],
            lambda *_: metrics.upload_folder(folders["metrics_dir"], on_unsupported=sync.leave_out),
        )
    if leads:
        folder, logs = folders["checkpoint_dir"], folders["tensorboard_dir"]
        sync.keep(folder, lambda _, *how: save_checkpoint(checkpoints, folder, *how))
        sync.keep(logs, lambda changed, *_: _send_logs(metrics, logs, changed), grows=True)


def _send_logs(store: Store, folder: Path, changed: Container[Path]) -> None:
    for path in storable_files(folder, sync.leave_out):
        if folder / path in changed:
            store.upload(folder / path, f"{TENSORBOARD}/{path}")


def _run(program: Program, folders: Mapping[str, str], job: JobDescription) -> int:
    if program.kind == "command":
        return _run_child(command_line(program, folders, job.parameters))
    try:
        load_function(program)(**{name: folders[name] for name in program.folders}, **job.parameters)
    except SystemExit as end:  # sys.exit() at the end of a program is no failure.
        if end.code not in (None, 0):
            raise
    except Exception as error:
        # The peer's own end tells why, and all start again.
        if not is_lost_peer(error):
            raise
        traceback.print_exc()
        return PEER_LOST
    return 0


def _run_child(argv: list[str]) -> int:
    try:
        _children.append(subprocess.Popen(argv))
    except OSError as error:
        print(f"the command's program cannot be started: {error}", flush=True)
        return 127
    code = _children[0].wait()
    with _ending:
        return code if code >= 0 else 128 - code


def load_function(program: Program) -> Callable[..., object]:
    """Return the function to call; a user's source is written to a file first, for tracebacks to show its lines."""
    if program.kind == "trainer":
        module = importlib.import_module(f"kfp_distributed.trainers.{program.name}")
        names = vars(module)
    else:
        # In a folder of its own: in the working directory a function called `json` would hide the module.
        file = Path("source", f"{program.name}.py").absolute()
        file.parent.mkdir(exist_ok=True)
        file.write_text(program.source)
        names = {"__name__": program.name, "__file__": str(file)}
        # With this flag, annotations need no import to be there.
        flag = __future__.annotations.compiler_flag
        exec(compile(program.source, str(file), "exec", flag, dont_inherit=True), names)
    function: Callable[..., object] = names[program.name]
    return function


def _save_model(job: JobDescription, manifest: DatasetManifest, folder: Path, metrics: Mapping[str, float]) -> None:
    """Store what the program has left in model_dir at the job's model_uri, the manifest last."""
    if not storable_files(folder):
        raise FileNotFoundError(f"the program ended without an error, but left nothing in model_dir ({folder})")
    if (folder / MODEL_MANIFEST).exists():
        raise FileExistsError(f"model_dir has a {MODEL_MANIFEST}, the name of the model's manifest: rename the file")
    store = open_store(job.model_uri, retry_seconds=_SAVE_SECONDS)
    # What an earlier attempt left: its manifest goes first, so that it never describes another's files.
    store.delete([MODEL_MANIFEST])
    store.delete([entry.key for entry in store.list()])
    files = store.upload_folder(folder)
    form = next((form for file, form in FORMATS.items() if (folder / file).exists()), "files")
    columns = tuple(asdict(column) for column in manifest.columns)
    described = ModelManifest(form, files, metrics, job.name, columns, asdict(manifest.label))
    store.write(MODEL_MANIFEST, described.to_json().encode())
    print(f"model saved to {job.model_uri}", flush=True)


def _await_evaluator(store: Store, epoch: float) -> None:
    """Give the evaluator time to score an epoch; a line says where it has not."""
    until = time.monotonic() + _EVALUATOR_SECONDS
    while time.monotonic() < until:
        try:
            if store.exists(EVALUATOR_METRICS):
                epochs = json.loads(store.read(EVALUATOR_METRICS))["epochs"]
                if epochs[-1]["epoch"] >= epoch:
                    return
        except StorageError as error:  # The model is saved: nothing is lost.
            print(f"the evaluator's metrics cannot be read: {error}", flush=True)
        time.sleep(1)
    print(f"the evaluator has not scored epoch {epoch:g} within {_EVALUATOR_SECONDS} s; going on without", flush=True)


if __name__ == "__main__":
    sys.exit(main())
