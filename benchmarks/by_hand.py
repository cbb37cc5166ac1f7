"""The trainings of `train_step.py`, each started by the step and by hand: as plain processes or by its launcher."""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kfp_distributed.components.train.describe.topology import replica_environment
from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.interpreter import find_python
from kfp_distributed.components.train.run.runners.local.ports import free_ports
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request, plan_job
from kfp_distributed.processes.group import ProcessGroup
from kfp_distributed.trainers.runtime.job_description import JOB_VARIABLE

_SCRIPTS = Path(__file__).parent / "programs"
_RANKS = 2


@dataclass(frozen=True)
class Training:
    """A training that the step and something else can start.

    Attributes:
        name: Its name in the table.
        distribution: Its distribution_specification.
        script: The program in benchmarks/programs; "" for the built-in trainer.
        launcher: Name of its usual launcher, if it has one.
    """

    name: str
    distribution: Mapping[str, object]
    script: str = ""
    launcher: tuple[str, ...] = ()

    def request(self, data: Path, folder: Path) -> Request:
        """Return the request of the step, with a new folder for its outputs."""
        folder.mkdir(parents=True)
        command = ["python", str(_SCRIPTS / self.script), "--model_dir", "{model_dir}"]
        return Request(
            train_uri=str(data / "train"),
            validation_uri="" if self.script else str(data / "validation"),
            model_uri=str(folder / "model"),
            train_specification={"command": command} if self.script else {"trainer": "keras_classifier"},
            train_parameters={} if self.script else {"epochs": 10},
            distribution_specification=self.distribution,
            identity=(str(folder),),
        )


_TF = {"distribution_type": "TF", "number_of_parameter_servers": 0}
TRAININGS = (
    Training("3 workers, all-reduce", {**_TF, "number_of_workers": 3}),
    Training("chief, 2 parameter servers, 2 workers", {"distribution_type": "TF", "number_of_workers": 2}),
    Training("one process", {"distribution_type": "Job"}),
)
PROGRAMS = (
    Training("Horovod", {"distribution_type": "MPI", "number_of_workers": _RANKS}, "horovod_script.py", ("mpirun",)),
    Training(
        "DistributedDataParallel",
        {"distribution_type": "PyTorch", "number_of_workers": _RANKS - 1},
        "torch_script.py",
        ("torchrun",),
    ),
    Training("MultiWorkerMirrored", {**_TF, "number_of_workers": _RANKS}, "tensorflow_script.py", ("TF_CONFIG",)),
)


@dataclass(frozen=True)
class _Start:
    """A process that is started by hand. One that serves others is killed at the end."""

    argv: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    serves: bool = False


def run_by_step(training: Training, data: Path, folder: Path) -> float:
    """Run a training by the step. Return the seconds."""
    request = training.request(data, folder)
    started = time.monotonic()
    launch(request, LocalRunner(), lambda line: None)
    return time.monotonic() - started


def run_by_hand(training: Training, data: Path, folder: Path) -> float:
    """Run a training by hand. Return the seconds.

    Raises:
        RuntimeError: It failed. The message has the end of its output.
    """
    request = training.request(data, folder)
    starts = [*(_launcher(training, folder / "model") if training.script else _replicas(request, folder))]
    (folder / "model").mkdir(exist_ok=True)
    with (folder / "log").open("wb") as log, ProcessGroup() as group:
        started, processes = time.monotonic(), []
        for number, start in enumerate(starts):
            work = folder / str(number)
            work.mkdir()
            process = group.start(str(number), start.argv, env={**os.environ, **start.variables}, cwd=work, stdout=log)
            if not start.serves:
                processes.append(process)
        # If one process fails, another may wait for it forever.
        while None in (codes := [process.poll() for process in processes]) and not any(codes):
            time.sleep(0.01)
        seconds = time.monotonic() - started
    if any(codes) or not any((folder / "model").iterdir()):
        text = (folder / "log").read_text(errors="replace")
        raise RuntimeError(f"{training.name} exited with {codes}:\n{text[-4000:]}")
    return seconds


def _replicas(request: Request, folder: Path) -> Iterator[_Start]:
    """Yield the replicas of the step, with the same TF_CONFIG."""
    job = plan_job(request)
    file = folder / "job.json"
    file.write_text(job.description.to_json())
    replicas = job.topology.replicas
    ports = free_ports(len(replicas))
    addresses = {replica.name: f"127.0.0.1:{port}" for replica, port in zip(replicas, ports, strict=True)}
    for replica in replicas:
        variables = replica_environment(job.topology, replica.name, addresses, job.specification)
        argv = [sys.executable, "-m", "kfp_distributed.trainers.runtime.entry"]
        yield _Start(argv, {**variables, JOB_VARIABLE: str(file)}, replica.serves)


def _launcher(training: Training, model: Path) -> Iterator[_Start]:
    """Yield the processes of the usual launcher of a script."""
    distribution_type = str(training.distribution["distribution_type"])
    script = [str(_SCRIPTS / training.script), "--model_dir", str(model)]
    python = find_python({"command": ["python", *script]}, distribution_type)
    if distribution_type == "MPI":
        options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(_RANKS)]
        yield _Start([str(Path(python).with_name("mpirun")), *options, python, *script])
    elif distribution_type == "PyTorch":
        # torchrun 1.13 cannot parse its own defaults of the first two variables on Python 3.11. It polls its ranks
        # every 5 s by default. Later versions poll them every 0.1 s.
        variables = {"PET_REDIRECTS": "9:1", "PET_TEE": "9:1", "PET_MONITOR_INTERVAL": "0.1"}
        yield _Start([python, "-m", "torch.distributed.run", f"--nproc_per_node={_RANKS}", *script], variables)
    else:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(_RANKS)]}
        for index in range(_RANKS):
            config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
            yield _Start([python, *script], {"TF_CONFIG": config})
