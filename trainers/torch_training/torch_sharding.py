"""Saves and loads sharded checkpoints with torch.distributed.checkpoint. Requires PyTorch 2.3."""

import io
import os
import pickle
import shutil
import uuid
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.futures import Future

from kfp_distributed.storage.errors import ChecksumMismatch, KeyNotFound, StorageError
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.trainers.runtime.checkpoints import sharded_uploads
from kfp_distributed.trainers.runtime.checkpoints.sharded_files import CheckpointFiles, SavedRange
from kfp_distributed.trainers.runtime.checkpoints.sharded_uploads import SavePlan, ShardSave, ShardUploads
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import (
    NoUsableCheckpoint,
    Sharding,
    checkpoint_numbers,
    list_checkpoints,
    newest_sharded,
    parse_manifest,
    parse_sharding,
)
from kfp_distributed.trainers.runtime.job_description import JOB_VARIABLE, STORE_SECONDS, JobDescription
from kfp_distributed.trainers.runtime.lifecycle import termination
from kfp_distributed.trainers.runtime.outputs.results import SYNC_RETRY_SECONDS
from kfp_distributed.trainers.runtime.ranks.cluster import read_rank

_FOLDER_VARIABLE = "KFP_DISTRIBUTED_CHECKPOINT_DIR"
_Value = TypeVar("_Value")
_METADATA = ".metadata"
_DAMAGED = (KeyNotFound, ChecksumMismatch, pickle.UnpicklingError, EOFError)


class _Job:
    """The saves and loads of this process."""

    def __init__(self) -> None:
        _check_group()
        job = JobDescription.from_json(Path(os.environ[JOB_VARIABLE]).read_text())
        self.uri = job.checkpoint_uri
        checkpoints = Path(os.environ[_FOLDER_VARIABLE])
        self.folder = checkpoints.with_name(f"{checkpoints.name}-shards")
        shutil.rmtree(self.folder, ignore_errors=True)  # Of an earlier start of this replica.
        # Not the group of the program, which may be one for GPUs alone. Every rank creates it here.
        self.group = dist.new_group(backend="gloo") if _is_distributed() else None
        self.rank: int = dist.get_rank() if self.group else 0
        self.ranks: int = dist.get_world_size() if self.group else 1
        self.uploads = ShardUploads(open_store(self.uri, retry_seconds=SYNC_RETRY_SECONDS))
        sharded_uploads.current.append(self.uploads)
        self.number, self.step = -1, -1
        """Number of the newest checkpoint that rank 0 has seen in the store, -1 before it has looked; and step of the
        newest that this process has saved or loaded."""

    def agreed(self, value: _Value) -> _Value:
        """Return rank 0's value in all ranks."""
        values = [value]
        if self.group:
            dist.broadcast_object_list(values, src=0, group=self.group)
        return values[0]

    def gathered(self, value: _Value) -> list[_Value]:
        """Return the values of all ranks, in all ranks."""
        values = [value]
        if self.group:
            dist.all_gather_object(values := [value] * self.ranks, value, group=self.group)
        return values

    def first_error(self, error: Exception | None) -> Exception | None:
        """Return the error of a rank, the same one in all ranks; None if none of them has one.

        torch.distributed.checkpoint exchanges errors, too, but cannot pickle them with Python 3.13.
        """
        found = [other for other in self.gathered(error) if other]
        # That the checkpoint is damaged counts most, because then another one is tried.
        return max(
            found, key=lambda other: (isinstance(other, _DAMAGED), isinstance(other, StorageError)), default=None
        )

    def plan(self, step: int) -> SavePlan:
        """Decide about a save, in rank 0."""
        if step == self.step:
            return SavePlan(reason=f"the newest checkpoint is of step {step} already")
        try:
            if self.number < 0:
                self.number = _newest_number(open_store(self.uri, retry_seconds=SYNC_RETRY_SECONDS))
        except StorageError as error:
            return SavePlan(reason=str(error))
        return SavePlan(checkpoint_numbers.begin_sharded(self.number), uuid.uuid4().hex, self.uploads.replaceable())


def _check_group() -> None:
    """Check that the ranks know each other. Otherwise each would store all of its state, as the checkpoint of all.

    Raises:
        RuntimeError: The job has several ranks, and the program has not initialized torch.distributed.
    """
    rank = read_rank(os.environ)
    ranks = rank.size if rank else int(os.environ.get("WORLD_SIZE") or 1)
    if ranks > 1 and not _is_distributed():
        raise RuntimeError(
            f"the job has {ranks} ranks, and torch.distributed is not initialized: call "
            "torch.distributed.init_process_group() before the functions of torch_checkpoint"
        )


def _is_distributed() -> bool:
    return bool(dist.is_available() and dist.is_initialized())


@cache
def _job() -> _Job:
    return _Job()


def is_ending() -> bool:
    """Return the leader's `is_ending` in all ranks. See `torch_checkpoint.is_ending`."""
    if JOB_VARIABLE not in os.environ:
        return False
    job = _job()
    ends = job.agreed(termination.is_ending() if job.rank == 0 else False)
    if ends:
        termination.end_with_leader()
    return ends


def _newest_number(store: Store) -> int:
    stored = list_checkpoints(store)
    return max((int(name) for names in stored for name in names), default=0)


def save(state: Mapping[str, object], step: int, wait: bool) -> bool:
    """Save a checkpoint. See `torch_checkpoint.save_sharded`."""
    if JOB_VARIABLE not in os.environ:
        return False
    job = _job()
    job.uploads.fail(job.gathered(job.uploads.take_failures()))
    plan = job.agreed(job.plan(step) if job.rank == 0 else SavePlan())
    if plan.reason:
        if job.rank == 0:
            print(f"not stored: the checkpoint of step {step}: {plan.reason}", flush=True)
        if wait:
            job.uploads.finish(STORE_SECONDS)
        return False
    job.uploads.drop(plan.dropped)
    writer = _Writer(job.folder / plan.folder)
    dcp.save(_state_dicts(state), storage_writer=writer, process_group=job.group)
    if error := job.first_error(writer.error):
        shutil.rmtree(writer.folder, ignore_errors=True)
        checkpoint_numbers.unfinished.discard(plan.name)
        if job.rank == 0:
            print(f"not stored: the checkpoint of step {step}: {error}", flush=True)
        return False
    sharding = Sharding(step, job.ranks, plan.folder)
    job.step = step
    job.uploads.add(ShardSave(plan.name, sharding, job.rank, writer.folder, writer.ranges))
    if wait:
        job.uploads.finish(STORE_SECONDS)
    return True


def load(state: Mapping[str, object]) -> int | None:
    """Load the newest usable checkpoint. See `torch_checkpoint.load_sharded`."""
    if JOB_VARIABLE not in os.environ:
        return None
    job, tried = _job(), dict[str, str]()
    store = open_store(job.uri, retry_seconds=STORE_SECONDS)
    while True:
        found = job.agreed(_found(store, tried) if job.rank == 0 else None)
        if isinstance(found, Exception):
            raise found
        if not found:
            return None
        name, manifest = found
        error = _read(job, store, state, name, manifest)
        if isinstance(error, _DAMAGED):
            tried[name] = str(error)
            if job.rank == 0:
                print(f"cannot use checkpoint {name}, trying the previous one: {error}", flush=True)
            continue
        if error:
            raise error
        sharding = parse_sharding(manifest)
        assert sharding
        job.step = sharding.step
        return sharding.step


def _found(store: Store, tried: dict[str, str]) -> tuple[str, bytes] | Exception | None:
    """Return the result of `newest_sharded`, or its error, which is for all ranks."""
    try:
        return newest_sharded(store, tried)
    except (StorageError, NoUsableCheckpoint) as error:
        return error


def _read(job: _Job, store: Store, state: Mapping[str, object], name: str, manifest: bytes) -> Exception | None:
    """Load a checkpoint. Return the error of a rank, the same one in all ranks; None if it is loaded."""
    sharding = parse_sharding(manifest)
    assert sharding
    files = CheckpointFiles(store, name, sharding.folder, parse_manifest(manifest)[0])
    metadata, error = None, None
    try:
        metadata = pickle.loads(files.read(_METADATA))
    except Exception as failure:  # noqa: BLE001 - the other ranks wait for it
        error = failure
    if error := job.first_error(error):
        return error
    values, reader, planner = _state_dicts(state), _Reader(files, metadata), _Planner()
    try:
        dcp.load(values, storage_reader=reader, planner=planner, process_group=job.group)
    except (Exception, CheckpointException) as failure:
        if not planner.error:
            raise
        raise ValueError(
            f"checkpoint {name} is of other objects than those to load: {planner.error}. Load it into a model and an "
            "optimizer like those that were saved"
        ) from failure
    if error := job.first_error(reader.error):
        return error
    for key, value in state.items():
        if isinstance(value, torch.nn.Module):
            set_model_state_dict(value, values[key])
        elif isinstance(value, torch.optim.Optimizer):
            set_optimizer_state_dict(_model_of(key, value, state), value, values[key])
        elif not isinstance(value, torch.Tensor):
            value.load_state_dict(values[key])  # type: ignore[attr-defined]
    print(
        f"loaded checkpoint {name} of step {sharding.step}, saved by {sharding.ranks} ranks: rank {job.rank} of "
        f"{job.ranks} has read {files.read_bytes} bytes",
        flush=True,
    )
    return None


def _state_dicts(state: Mapping[str, object]) -> dict[str, Any]:
    """Return what is saved of each object. Tensors in it share the memory of the objects.

    Raises:
        ValueError: An object cannot be saved.
    """
    values: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, torch.nn.Module):
            values[key] = get_model_state_dict(value)
        elif isinstance(value, torch.optim.Optimizer):
            values[key] = get_optimizer_state_dict(_model_of(key, value, state), value)
        elif isinstance(value, torch.Tensor):
            values[key] = value
        elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            values[key] = value.state_dict()
        else:
            raise ValueError(
                f"state[{key!r}] is of type {type(value).__name__}; allowed: modules, optimizers, tensors, and objects "
                "with state_dict() and load_state_dict(). Put numbers into a tensor"
            )
    return values


def _model_of(key: str, optimizer: torch.optim.Optimizer, state: Mapping[str, object]) -> torch.nn.Module:
    """Return the module of an optimizer, which knows the names of its parameters."""
    wanted = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
    for value in state.values():
        if isinstance(value, torch.nn.Module) and wanted <= {id(tensor) for tensor in value.parameters()}:
            return value
    raise ValueError(
        f"state[{key!r}] is an optimizer of parameters of which no module in state has all: put its module into state"
    )


class _Writer(dcp.FileSystemWriter):  # type: ignore[misc]  # torch is not installed when types are checked
    """Writes the tensors of this rank to one local file.

    Attributes:
        folder: The folder of the file.
        ranges: Where each tensor is.
        error: Error of the local disk, such as that it is full; None for none.
    """

    def __init__(self, folder: Path) -> None:
        # A file need not be safe from a power failure: the checkpoint is what is in the store.
        super().__init__(folder, single_file_per_rank=True, sync_files=False)
        self.folder, self.ranges = folder, list[SavedRange]()
        self.error: OSError | None = None

    def write_data(self, plan: dcp.SavePlan, planner: dcp.SavePlanner) -> Future:
        """Write the tensors, and note where each one is."""
        try:
            future = super().write_data(plan, planner)
        except OSError as error:
            self.error = error
            future = Future()
            future.set_result([])
        for result in future.wait():
            place = result.storage_data
            self.ranges.append(SavedRange(place.relative_path, place.offset, place.length))
        return future


class _Reader(dcp.StorageReader):  # type: ignore[misc]
    """Reads the tensors that this rank needs from the object store.

    Attributes:
        error: Why they cannot be read; None if they are.
    """

    def __init__(self, files: CheckpointFiles, metadata: object) -> None:
        self._files, self._metadata = files, metadata
        self.error: Exception | None = None
        self._places: Mapping[Any, Any] = {}

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        """Return false: a checkpoint has no ID here."""
        return False

    def reset(self, checkpoint_id: object = None) -> None:
        """Do nothing: a reader is of one checkpoint."""

    def read_metadata(self, *args: object, **options: object) -> object:
        """Return the metadata, with the place of each tensor."""
        return self._metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: object, **options: object) -> None:
        """Take the places from the metadata."""
        self._places = metadata.storage_data

    def prepare_local_plan(self, plan: dcp.LoadPlan) -> dcp.LoadPlan:
        """Return the plan of this rank unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[dcp.LoadPlan]) -> list[dcp.LoadPlan]:
        """Return the plans of all ranks unchanged."""
        return plans

    def read_data(self, plan: dcp.LoadPlan, planner: dcp.LoadPlanner) -> Future:
        """Read each range once, and copy it into all tensors of the plan that need it."""
        items: dict[SavedRange, list[Any]] = {}
        for item in plan.items:
            place = self._places[item.storage_index]
            items.setdefault(SavedRange(place.relative_path, place.offset, place.length), []).append(item)
        try:
            for range_, data in self._files.read_ranges([*items]):
                for item in items[range_]:
                    _load_item(item, data, planner)
        except Exception as error:  # noqa: BLE001 - the other ranks wait for it
            self.error = error
        future = Future()
        future.set_result(None)
        return future


class _Planner(dcp.DefaultLoadPlanner):  # type: ignore[misc]
    """Plans what is loaded into which tensor.

    Attributes:
        error: Why the checkpoint does not have what is to be loaded; None if it has.
    """

    error: Exception | None = None

    def create_local_plan(self) -> dcp.LoadPlan:
        """Return the plan of this rank."""
        try:
            return super().create_local_plan()
        except Exception as error:
            self.error = error
            raise


def _load_item(item: ReadItem, data: memoryview, planner: dcp.LoadPlanner) -> None:
    if item.type == LoadItemType.BYTE_IO:
        planner.load_bytes(item, io.BytesIO(data))
        return
    tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    for dimension, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        tensor = tensor.narrow(dimension, offset, length)
    target = planner.resolve_tensor(item).detach()
    target.copy_(tensor)
    planner.commit_tensor(item, target)
