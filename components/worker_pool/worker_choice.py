"""The workers of a step: none, processes of this machine, a Dask cluster that runs, or pods of a job."""

import importlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from kfp_distributed.components.kfp_interface.step_packages import DASK
from kfp_distributed.components.train.describe.distributions import KEYS, SingleJob
from kfp_distributed.components.train.describe.keys import Key, keys_of, read_keys
from kfp_distributed.components.train.describe.specification import DistributionSpecification
from kfp_distributed.components.train.describe.value_kinds import COUNT, MAPPING, is_blank, read_entry, text
from kfp_distributed.components.train.run.runners.protocol import Runner
from kfp_distributed.components.train.run.runners.runner_choice import choose_runner
from kfp_distributed.components.train.tell.step_log import StepLog
from kfp_distributed.components.worker_pool.dask_engine import DaskEngine
from kfp_distributed.components.worker_pool.worker_job import SET_BY_THE_STEP, parse_worker_settings
from kfp_distributed.library.content import STEP_PACKAGES
from kfp_distributed.library.packages import install
from kfp_distributed.library.start import INSTALLS_PACKAGES
from kfp_distributed.storage.uri import join_uri


@dataclass(frozen=True)
class Workers:
    """Who does the work.

    Attributes:
        count: Number of workers; 0 for the step alone, or for the workers of `scheduler`.
        scheduler: Address of the scheduler of a Dask cluster; "" for none.
        settings: Settings of each worker.
    """

    count: int
    scheduler: str
    settings: DistributionSpecification


_NUMBER = Key(COUNT, "Number of workers of the step; 0 for the step alone.", 0)
_SCHEDULER = Key(
    text("the address of a scheduler without TLS, such as tcp://10.0.0.7:8786", r"tcp://\S+"),
    "Address of the scheduler of a Dask cluster that runs already.",
    default_text="none",
)
_OWN_KEYS = {"number_of_workers": _NUMBER, "dask_scheduler": _SCHEDULER}
_OF_PODS = {name: key for name, key in keys_of(SingleJob).items() if name not in SET_BY_THE_STEP}


def parse_workers(specification: Mapping[str, object] | str | None, least_memory: str = "") -> Workers:
    """Check the `distribution_specification` of a step as KFP delivers it: numbers also as 8.0, "8" or "8.0".

    Args:
        specification: The dict or its JSON text. None, "" and {} mean the step alone. A key with the value None or ""
            gets its default.
        least_memory: See `parse_worker_settings`.

    Raises:
        ValueError: A key is unknown, has an invalid value, or contradicts another one.
    """
    given = {} if is_blank(specification) else read_entry("distribution_specification", MAPPING, specification)
    entries = {name: value for name, value in given.items() if not is_blank(value)}
    try:
        # Keys of `train` go to `parse_worker_settings`, which says why it has others.
        own = {name: value for name, value in entries.items() if name in _OWN_KEYS or name not in KEYS}
        values = read_keys(own, {**_OF_PODS, **_OWN_KEYS})
    except ValueError as error:
        raise ValueError(f"distribution_specification: {error}") from None
    count, scheduler = values.get("number_of_workers", 0), values.get("dask_scheduler", "")
    if scheduler and count:
        raise ValueError(
            f"distribution_specification: number_of_workers = {count} and dask_scheduler = {scheduler!r}: the cluster "
            "of the scheduler has its own workers, so give one of them"
        )
    settings = {name: value for name, value in entries.items() if name not in _OWN_KEYS}
    parsed = parse_worker_settings(settings, least_memory)
    if settings and not count:
        keys = ", ".join(settings)
        raise ValueError(
            f"distribution_specification has {keys} beside dask_scheduler, whose workers run already: remove {keys}"
            if scheduler
            else f"distribution_specification has {keys}, but number_of_workers is 0: set number_of_workers, or remove "
            f"{keys}"
        )
    return Workers(count, scheduler, parsed)


@contextmanager
def engine_of(workers: Workers, path: str, uri: str, folder: str) -> Iterator[DaskEngine | None]:
    """Yield the engine that the step itself uses; None if the step is alone.

    What processes of this machine have stored is deleted, because the next run has another folder.

    Args:
        workers: Who does the work.
        path: Local path of an output.
        uri: Its address.
        folder: Address for what the workers of a scheduler store.

    Raises:
        ValueError: Dask is missing, or a cluster cannot reach the outputs.
    """
    if workers.scheduler:
        if "://" not in uri:
            raise ValueError(
                f"distribution_specification: dask_scheduler = {workers.scheduler!r}, and the output {uri} is on this "
                "machine, which workers may not write: run the pipeline with an object store, or set "
                "number_of_workers instead"
            )
        _provide_dask()
        yield DaskEngine(join_uri(folder, "scratch"), scheduler=workers.scheduler)
    elif workers.count:
        _provide_dask()
        # The outputs do not depend on the number. A pipeline for a cluster must not stop a laptop.
        processes = min(workers.count, os.cpu_count() or 1)
        text = f"{workers.count} workers: {processes} processes of this machine, which has no access to a cluster"
        print(text, flush=True)
        memory = {"memory_limit": workers.settings.worker_memory} if workers.settings.worker_memory else {}
        parent = Path(path).parent
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".workers-", dir=parent) as scratch:
            yield DaskEngine(scratch, workers=processes, **memory)
    else:
        yield None


def pod_runner(workers: Workers, uri: str, step_log: StepLog) -> Runner | None:
    """Return the runner of pods; None if the step does the work itself, or starts processes.

    Args:
        workers: Who does the work.
        uri: Address of an output.
        step_log: Log of the step.
    """
    if not workers.count:
        return None
    runner = choose_runner("auto", step_log.log, uri, packages=STEP_PACKAGES)
    return None if runner.shares_disk else runner


def _provide_dask() -> None:
    """Install Dask if it is missing and the step installs packages.

    Raises:
        ValueError: It is missing, and the step installs nothing.
        SystemExit: pip failed.
    """
    if find_spec("distributed"):
        return
    if not os.environ.get(INSTALLS_PACKAGES):
        raise ValueError(
            "workers need the Python package distributed, which is missing here: run pip install "
            "'kfp-distributed[dask]', or add it to the image of the step"
        )
    install(*DASK)
    importlib.import_module("distributed")
