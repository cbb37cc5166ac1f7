"""Stores what a replica produces: checkpoints, metrics, logs for TensorBoard, and the model."""

import json
import time
from collections.abc import Container, Mapping, Set
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from kfp_distributed.storage.dataset import DatasetManifest
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.files import storable_files
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest
from kfp_distributed.storage.model_format import find_format
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.parallel import PARALLEL_REQUESTS, run_in_parallel
from kfp_distributed.storage.provenance import with_training_data
from kfp_distributed.storage.store import Store
from kfp_distributed.trainers.programs.program import LANGUAGE_EVALUATION
from kfp_distributed.trainers.runtime.checkpoints import folder_uploads
from kfp_distributed.trainers.runtime.checkpoints.completeness import RenamedFiles, is_marked, is_written
from kfp_distributed.trainers.runtime.checkpoints.snapshots import Snapshot, leave_out
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import save_checkpoint
from kfp_distributed.trainers.runtime.job_description import (
    BASE_MODEL,
    EVALUATOR_METRICS,
    STORE_SECONDS,
    TENSORBOARD,
    TRAINING_DATA,
    TRAINING_METRICS,
    JobDescription,
)
from kfp_distributed.trainers.runtime.monitoring.sampling import count_bytes
from kfp_distributed.trainers.runtime.outputs.served_signature import served_signature

SYNC_RETRY_SECONDS = 5.0
"""Seconds to retry sending checkpoints and metrics. After that, newer ones are sent, or they are sent again."""

_INCOMING = ".incoming"
"""Folder below model_uri for the files of a model that replaces another one."""

_EVALUATOR_SECONDS = 60
"""Seconds for which the leader waits for the evaluator to score the last epoch."""


def keep_results(job: JobDescription, leads: bool, evaluates: bool, folders: Mapping[str, Path]) -> None:
    """Download the metrics so far, and begin to store the folders of this replica in the object store."""
    checkpoints = open_store(job.checkpoint_uri, retry_seconds=SYNC_RETRY_SECONDS)
    metrics = open_store(job.metrics_uri, retry_seconds=STORE_SECONDS)
    name = EVALUATOR_METRICS if evaluates else TRAINING_METRICS
    # Without the metrics so far, this replica would overwrite them.
    if metrics.exists(name):
        metrics.download(name, folders["metrics_dir"] / name)
    metrics = open_store(job.metrics_uri, retry_seconds=SYNC_RETRY_SECONDS)
    # Metrics are stored before checkpoints, because an epoch with a stored checkpoint is not repeated.
    if leads or evaluates:
        folder_uploads.keep(
            folders["metrics_dir"],
            lambda snapshot, _: metrics.upload_folder(snapshot.folder, on_unsupported=leave_out),
        )
    if leads:
        folder, logs = folders["checkpoint_dir"], folders["tensorboard_dir"]
        renamed = RenamedFiles(folder)

        def is_complete(files: Set[Path], changed: Set[Path]) -> bool:
            return is_marked(files, changed, renamed) and not is_written(folder)

        folder_uploads.keep(folder, partial(_send_checkpoint, checkpoints), is_complete=is_complete)
        folder_uploads.keep(logs, lambda _, changed: _send_logs(metrics, logs, changed), append_only=True)


def _send_checkpoint(store: Store, snapshot: Snapshot, _: Container[Path]) -> None:
    def on_bytes(count: int) -> None:
        snapshot.continue_upload()
        count_bytes(count)

    save_checkpoint(store, snapshot.folder, snapshot.check, snapshot.guessed, on_bytes)


def record_training_data(job: JobDescription, manifest: DatasetManifest) -> list[Mapping[str, Any]]:
    """Store which datasets train the checkpoints, for trainings that resume from them; return the datasets."""
    store = open_store(job.metrics_uri, retry_seconds=STORE_SECONDS)
    earlier = json.loads(store.read(TRAINING_DATA)) if store.exists(TRAINING_DATA) else []
    trained = with_training_data(earlier, manifest)
    if trained != earlier:
        store.write(TRAINING_DATA, json.dumps(trained).encode())
    return trained


def _send_logs(store: Store, folder: Path, changed: Container[Path]) -> None:
    for path in storable_files(folder, leave_out):
        if folder / path in changed:
            store.upload(folder / path, f"{TENSORBOARD}/{path}")


def save_model(job: JobDescription, manifest: DatasetManifest, folder: Path, metrics: Mapping[str, float]) -> None:
    """Upload the files of model_dir to the job's model_uri, and then the manifest.

    A complete model of another job is replaced when all files of this one are in the store.

    Args:
        job: The job.
        manifest: Manifest of the training data.
        folder: The folder model_dir.
        metrics: Metrics for the model's manifest. "epoch" is the number of the epoch after which the model was saved.

    Raises:
        FileNotFoundError: The folder has no file that can be stored.
        FileExistsError: A file has the name of the manifest.
    """
    if not storable_files(folder):
        raise FileNotFoundError(
            f"the program ended without an error, but left nothing in model_dir ({folder}): save the model there. A "
            "function gets the folder as its parameter model_dir, a command by the placeholder {model_dir} in its "
            "words or the variable KFP_DISTRIBUTED_MODEL_DIR"
        )
    if (folder / MODEL_MANIFEST).exists():
        raise FileExistsError(f"model_dir has a {MODEL_MANIFEST}, which is the name of the manifest; rename the file")
    store = open_store(job.model_uri, retry_seconds=STORE_SECONDS)
    replaces = store.exists(MODEL_MANIFEST)
    if not replaces:
        store.delete([entry.key for entry in store.list()])
    files = store.upload_folder(folder, _INCOMING if replaces else "", on_bytes=count_bytes)
    if replaces:
        # The manifest first, so that it never describes other files.
        store.delete([MODEL_MANIFEST])
        store.delete([entry.key for entry in store.list() if not entry.key.startswith(f"{_INCOMING}/")])
        run_in_parallel(
            lambda file: store.copy(store, f"{_INCOMING}/{file.path}", file.path, size=file.size),
            files,
            PARALLEL_REQUESTS,
        )
        store.delete([entry.key for entry in store.list(f"{_INCOMING}/")])
    columns = tuple(asdict(column) for column in manifest.columns)
    trained = tuple(record_training_data(job, manifest))
    label = asdict(manifest.label)
    name = find_format(folder)
    signature = served_signature(folder, name)
    file = folder / BASE_MODEL
    base = json.loads(file.read_text()) if job.program.get("trainer") and file.exists() else {}
    model = ModelManifest(name, files, metrics, job.name, columns, label, trained, job.request, signature, base)
    store.write(MODEL_MANIFEST, model.to_json().encode())
    epoch = f" of epoch {metrics['epoch']:g}" if "epoch" in metrics else ""
    what = "results" if job.program.get("trainer") == LANGUAGE_EVALUATION else "model"
    print(f"{what}{epoch} saved to {job.model_uri}", flush=True)


def await_evaluator(store: Store, epoch: float) -> None:
    """Wait until the evaluator has scored an epoch. After a timeout, print a line and continue."""
    until = time.monotonic() + _EVALUATOR_SECONDS
    while time.monotonic() < until:
        try:
            if store.exists(EVALUATOR_METRICS):
                epochs = json.loads(store.read(EVALUATOR_METRICS))["epochs"]
                if epochs[-1]["epoch"] >= epoch:
                    return
        except StorageError as error:  # The model is saved already.
            print(f"the evaluator's metrics cannot be read: {error}", flush=True)
        time.sleep(1)
    print(f"the evaluator has not scored epoch {epoch:g} within {_EVALUATOR_SECONDS} s; continuing", flush=True)
