"""The program of every replica. `python -m kfp_distributed.trainers.runtime.entry` runs it in a folder of its own."""

import __future__

import atexit
import importlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from kfp_distributed.storage.alignment import align
from kfp_distributed.storage.answers import seconds_since_answer
from kfp_distributed.storage.dataset import DATASET_MANIFEST, DatasetManifest, parts_of_rank
from kfp_distributed.storage.errors import ChecksumMismatch, KeyNotFound, StorageError
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.shards import fetch_manifest, fetch_shards
from kfp_distributed.trainers.programs.program import (
    FOLDERS,
    JOB_TYPES,
    Program,
    command_line,
    function_arguments,
    parse_program,
)
from kfp_distributed.trainers.runtime.checkpoints import folder_uploads, sharded_uploads
from kfp_distributed.trainers.runtime.checkpoints.gathered_metrics import write_gathered
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import restore_checkpoint
from kfp_distributed.trainers.runtime.data_loading.rank_part import keep_rows, write_part
from kfp_distributed.trainers.runtime.data_loading.served_rows import serve_rows
from kfp_distributed.trainers.runtime.horovodrun import end_without_launcher
from kfp_distributed.trainers.runtime.job_description import (
    CHECKPOINT_REJECTED,
    JOB_VARIABLE,
    LOST_SECONDS_VARIABLE,
    PEER_LOST,
    PREEMPTED,
    PROGRAM_CODE_RESERVED,
    REPLICA_FOLDER_VARIABLE,
    REPLICA_VARIABLE,
    STORE_AWAY,
    STORE_FAILED,
    STORE_SECONDS,
    STORE_UNREACHED,
    TRAINING_METRICS,
    JobDescription,
)
from kfp_distributed.trainers.runtime.lifecycle.ending import (
    end,
    end_after,
    end_on_sigterm,
    leave_with,
    run_child,
    run_to_end,
    seconds_to_finish,
    was_told_to_end,
)
from kfp_distributed.trainers.runtime.lifecycle.fatal_errors import exit_code, is_lost_peer, print_error
from kfp_distributed.trainers.runtime.lifecycle.lost_step import end_when_lost
from kfp_distributed.trainers.runtime.lifecycle.rejection import RestoredCheckpoint
from kfp_distributed.trainers.runtime.lifecycle.termination import EndedEarly, begin, seconds_left
from kfp_distributed.trainers.runtime.monitoring.downloads import observed
from kfp_distributed.trainers.runtime.monitoring.sampling import print_samples, store_peak_memory, store_usage
from kfp_distributed.trainers.runtime.monitoring.status_server import report_progress_from_here
from kfp_distributed.trainers.runtime.outputs.metrics_file import read_epochs, read_model_metrics
from kfp_distributed.trainers.runtime.outputs.results import (
    SYNC_RETRY_SECONDS,
    await_evaluator,
    keep_results,
    record_training_data,
    save_model,
)
from kfp_distributed.trainers.runtime.ranks.cluster import Rank, has_ranks, is_elastic, is_rank, read_cluster, read_rank
from kfp_distributed.trainers.runtime.ranks.replica import ThisReplica, replica_name
from kfp_distributed.trainers.runtime.ranks.tensorflow_settings import prepare_tensorflow
from kfp_distributed.trainers.runtime.unless_trained import is_trained

_STORE_CODES = (STORE_AWAY, STORE_UNREACHED)

_LAUNCHER_LOST = 1
"""Exit code of a replica whose train step is lost. Codes below 128 are permanent failures, so the job fails."""


def main() -> int:
    """Run this replica's part of the job; return its exit code.

    A store that does not answer is no failure of the program. A replica that must end soon may lose its leader, which
    has ended because of that, before it has seen that it can end: it ends by SIGTERM all the same.
    """
    try:
        code = _run_replica()
        return 128 + signal.SIGTERM if code == PEER_LOST and was_told_to_end() else code
    except (KeyNotFound, ChecksumMismatch):
        raise
    except StorageError as error:
        return exit_code(error)


def _run_replica() -> int:
    # One stream for the container's log, because lines of two streams may be read in another order than written.
    os.dup2(sys.stdout.fileno(), sys.stderr.fileno())
    for stream in (sys.stdout, sys.stderr):
        # Without PYTHONUNBUFFERED's separate write for each argument of print(): a sample could come between them.
        stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    job = JobDescription.from_json(Path(os.environ[JOB_VARIABLE]).read_text())
    program, cluster, rank = parse_program(job.program, JOB_TYPES), read_cluster(os.environ), read_rank(os.environ)
    name = replica_name(os.environ, cluster, job, rank)
    replica = ThisReplica(job, program, cluster, rank, name, is_elastic(os.environ))
    own = Path(f"rank-{rank.rank}" if rank else "").absolute()
    folders = {folder: own / folder for folder in FOLDERS}
    lost_seconds, starts_ranks = os.environ.get(LOST_SECONDS_VARIABLE), has_ranks(os.environ)
    # Before the first thread: the C library may crash in a thread that reads a variable while another one is added.
    _set_variables(replica, starts_ranks, folders)
    end_on_sigterm()
    atexit.register(store_peak_memory)
    end_when_lost(lambda: end(_LAUNCHER_LOST), lost_seconds)
    if starts_ranks:
        print_samples(range(int(os.environ["PET_NPROC_PER_NODE"])), adds_memory=False)
        if is_trained(job):
            return 0
        return _code_of_ranks(run_child([sys.executable, "-m", "kfp_distributed.trainers.runtime.torchrun"]))
    _start_samples(job, rank, replica.elastic)
    if replica.elastic:
        end_without_launcher(lambda: end(PEER_LOST))
    if rank:
        _enter_rank(own)
    # What has started the ranks has looked for a model. By now, one of them may have saved it.
    if not (rank and not replica.elastic) and is_trained(job):
        return 0
    return _train(replica, folders)


def _set_variables(replica: ThisReplica, starts_ranks: bool, folders: Mapping[str, Path]) -> None:
    """Set all environment variables of this process and of the command that it runs."""
    os.environ[REPLICA_VARIABLE] = replica.name
    os.environ.setdefault(REPLICA_FOLDER_VARIABLE, str(Path.cwd()))  # Ranks get that of what starts them.
    if starts_ranks:  # They set their own. This process keeps reading the heartbeat.
        os.environ.pop(LOST_SECONDS_VARIABLE, None)
        return
    if "RANK" in os.environ:  # PyTorchJob's, for one rank in each replica. accelerate trains alone without these.
        os.environ.setdefault("LOCAL_RANK", "0")
        os.environ.setdefault("LOCAL_WORLD_SIZE", "1")
    for library in ("DATASETS", "HUB"):  # In a log, each state of a bar is a line.
        os.environ.setdefault(f"HF_{library}_DISABLE_PROGRESS_BARS", "1")
    prepare_tensorflow(replica.program, replica.cluster, replica.rank, replica.role)
    if replica.leads:
        report_progress_from_here()
    paths = _paths(replica.job, folders)
    os.environ.update({f"KFP_DISTRIBUTED_{folder.upper()}": path for folder, path in paths.items()})


def _paths(job: JobDescription, folders: Mapping[str, Path]) -> dict[str, str]:
    """Return the folders as the program gets them: "" for those that it does not need."""
    requested = {"validation_dir": job.validation_uri, "tensorboard_dir": job.tensorboard}
    return {folder: str(path) if requested.get(folder, True) else "" for folder, path in folders.items()}


def _train(replica: ThisReplica, folders: Mapping[str, Path]) -> int:
    """Fetch the data and the checkpoint, run the program, and store its results; return the exit code."""
    job, program = replica.job, replica.program
    if replica.is_served and replica.role == "ps":
        _serve(replica)
    manifest = fetch_data(job, program, replica.reads, folders)
    if replica.is_served and replica.role == "worker":
        _serve(replica)
    if job.validation_uri and replica.scores:
        _fetch_validation(job.validation_uri, folders["validation_dir"], manifest, *replica.scores)
    checkpoints = open_store(job.checkpoint_uri, retry_seconds=STORE_SECONDS)
    name = restore_checkpoint(checkpoints, folders["checkpoint_dir"])
    metrics = open_store(job.metrics_uri, retry_seconds=STORE_SECONDS)
    restored = RestoredCheckpoint(checkpoints, metrics, name, stores=replica.leads)
    if replica.leads and not replica.elastic:  # In an elastic job, another rank may be uploading.
        with suppress(StorageError):  # Not all servers and accounts can list them.
            checkpoints.abort_uploads()
    if replica.leads:
        record_training_data(job, manifest)
    keep_results(job, replica.leads, replica.role == "evaluator", folders)
    code = run_program(replica, folders, restored.reject)
    until = time.monotonic() + (seconds_left() if code == PREEMPTED else STORE_SECONDS * (code == 0))
    if code == 0 and replica.leads and not (replica.elastic and not any(folders["model_dir"].iterdir())):
        awaits_evaluator = "evaluator" in replica.cluster.addresses and program.kind == "trainer"
        _save(job, manifest, folders, awaits_evaluator)
    if code == 0:  # Otherwise it is done. After the model, which is worth more.
        sharded_uploads.finish(seconds_to_finish(code))
    # A program that failed may have been writing a file.
    is_committed = code in (0, PREEMPTED)
    while not folder_uploads.flush(by_program=is_committed) and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, SYNC_RETRY_SECONDS))
    if code == 0 and (leader := replica.leader_to_leave_with):
        leave_with(leader)
    return code


def _fetch_validation(uri: str, folder: Path, manifest: DatasetManifest, rank: int, ranks: int) -> None:
    """Download the validation rows of a rank, with the columns in the order of the manifest of the training rows.

    The order may be another one in other files of the source.
    """
    parts = parts_of_rank(fetch_manifest(uri, STORE_SECONDS), rank, ranks)
    validation = fetch_shards(uri, folder, parts, STORE_SECONDS, partial(observed, "validation data"))
    aligned = align(validation, [asdict(column) for column in manifest.columns], asdict(manifest.label))
    (folder / DATASET_MANIFEST).write_text(aligned.to_json())


def run_program(replica: ThisReplica, folders: Mapping[str, Path], reject_checkpoint: Callable[[], bool]) -> int:
    """Run the program; return the exit code.

    Args:
        replica: This replica.
        folders: The folders of the program by name.
        reject_checkpoint: Records that the program failed right after it had restored a checkpoint, and returns
            whether the next start gets another one.
    """
    job, program = replica.job, replica.program
    if not program.reads_store:
        threading.Thread(target=folder_uploads.poll_folders, daemon=True).start()
    termination = begin(job, replica.name, replica.leads) if replica.is_needed else None
    try:
        code = _run(program, _paths(job, folders), job)
        if code == 0 and termination and termination.was_told:
            code = PREEMPTED
        if code != 0:  # Before the leader leaves: the others wait for it, and store their part meanwhile.
            sharded_uploads.finish(seconds_to_finish(code))
    except BaseException as error:
        folder_uploads.flush(by_program=False)
        sharded_uploads.finish(seconds_to_finish(1))
        # SystemExit is a decision of the program. What a trainer cannot read or store is no fault of the checkpoint.
        is_of_store = program.kind == "trainer" and isinstance(error, StorageError)
        if replica.elastic or is_of_store or not isinstance(error, Exception) or not reject_checkpoint():
            raise
        print_error(error)
        return CHECKPOINT_REJECTED
    finally:
        if termination:
            termination.leave()
    if 0 < code < 128 and not replica.elastic and reject_checkpoint():
        return CHECKPOINT_REJECTED
    return code


def _save(job: JobDescription, manifest: DatasetManifest, folders: Mapping[str, Path], awaits_evaluator: bool) -> None:
    write_gathered()  # The last steps of a function may be in memory alone.
    file = folders["metrics_dir"] / TRAINING_METRICS
    metrics, last = read_model_metrics(file), [{}, *read_epochs(file)][-1].get("epoch", 0)
    if "trainer" not in job.program:
        metrics.pop("epoch", 0)  # Only of built-in trainers the epoch of the model is known.
    save_model(job, manifest, folders["model_dir"], metrics)
    if awaits_evaluator and job.validation_uri:
        await_evaluator(open_store(job.metrics_uri, retry_seconds=SYNC_RETRY_SECONDS), last)


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


def _enter_rank(folder: Path) -> None:
    """Set the output to complete lines, and change to the folder of this rank."""
    # A launcher marks the output of ranks by write(). Unbuffered, print() makes one for each of its arguments.
    sys.stdout.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    # All ranks of a replica start in the same folder.
    folder.mkdir(exist_ok=True)
    os.chdir(folder)


def fetch_data(
    job: JobDescription, program: Program, reads: tuple[int, int] | None, folders: Mapping[str, Path]
) -> DatasetManifest:
    """Create the folders of the program, and download its part of the training rows.

    A program that streams gets the manifest alone, because it reads its rows from the store.

    Args:
        job: The job.
        program: The program that reads them.
        reads: Index of the part, and number of parts; None for no rows.
        folders: The folders by name.

    Returns:
        The manifest of the complete dataset.
    """
    for folder in folders.values():  # A previous start of this replica may have left files.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    manifest, train = fetch_manifest(job.train_uri, STORE_SECONDS), folders["train_dir"]
    if program.rows == "stream":
        streamed = replace(manifest, shards_uri=manifest.shards_uri or job.train_uri)
        write_part(train, streamed, *(reads or (0, 0)))
        return manifest
    parts = parts_of_rank(manifest, *reads) if reads else ()
    local = fetch_shards(job.train_uri, train, parts, STORE_SECONDS, partial(observed, "training data"))
    keep_rows(train, local, parts)
    return manifest


def _serve(replica: ThisReplica) -> NoReturn:
    """Serve as a parameter server, or as a worker that the chief uses. It never returns."""
    import tensorflow as tf

    # A job continues without one of its workers. But the deletion of a job ends all of its replicas at the same time,
    # and the chief cannot finish its step without any worker.
    begin(replica.job, replica.name, replica.leads, is_needed=replica.role == "ps")
    if replica.program.kind == "trainer" and replica.role == "worker":
        serve_rows(str(Path("train_dir").absolute()), end_after)
    task = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    print(f"{replica.name} serves", flush=True)
    tf.distribute.Server(task.cluster_spec(), task.task_type, task.task_id, "grpc").join()
    raise SystemExit("the TensorFlow server ended by itself")


def _run(program: Program, folders: Mapping[str, str], job: JobDescription) -> int:
    if program.kind == "command":
        return _code_of_program(run_child(command_line(program, folders, job.parameters)))
    try:
        paths = {name: folders[name] for name in program.folders}
        load_function(program)(**paths, **function_arguments(program, job.parameters))
    except EndedEarly:
        return PREEMPTED
    except SystemExit as error:  # A program may end with sys.exit().
        if error.code in _STORE_CODES:
            return _code_of_program(int(error.code))
        if error.code not in (None, 0):
            raise
    except StorageError as error:
        # The request may have been one of a user's function to another store, so it is no outage of the job's store.
        if program.kind == "trainer" or isinstance(error, KeyNotFound | ChecksumMismatch):
            raise
        print_error(error)
        return STORE_FAILED
    except Exception as error:
        # The failure of the peer has the cause, and all replicas are restarted.
        if not is_lost_peer(error):
            raise
        print_error(error)
        return PEER_LOST
    return 0


def _code_of_program(code: int) -> int:
    """Return the exit code of a replica whose program ended with a code.

    STORE_AWAY would not count as a failure, and STORE_UNREACHED might not.
    """
    if code not in _STORE_CODES:
        return code
    text = f"the program ended with exit code {code}, which stands for an object store that does not answer"
    print(f"{text}: this replica ends with {PROGRAM_CODE_RESERVED} instead", flush=True)
    return PROGRAM_CODE_RESERVED


def _code_of_ranks(code: int) -> int:
    """Return the exit code of a replica whose ranks ended with a code. This process is part of it, as they are."""
    has_answer = seconds_since_answer() is not None
    return STORE_AWAY if code == STORE_UNREACHED and has_answer else code


def load_function(program: Program) -> Callable[..., object]:
    """Return the function to call. A user's source is written to a file, so that tracebacks show its lines."""
    if program.kind == "trainer":
        module = importlib.import_module(f"kfp_distributed.trainers.{program.name}")
        names = vars(module)
    else:
        # In a separate folder. In the working directory a function called `json` would hide the module.
        file = Path("source", f"{program.name}.py").absolute()
        file.parent.mkdir(exist_ok=True)
        file.write_text(program.source)
        names = {"__name__": program.name, "__file__": str(file)}
        # With this flag annotations are not evaluated, so their names need no imports.
        flag = __future__.annotations.compiler_flag
        exec(compile(program.source, str(file), "exec", flag, dont_inherit=True), names)
    function: Callable[..., object] = names[program.name]
    return function


if __name__ == "__main__":
    run_to_end(main)
