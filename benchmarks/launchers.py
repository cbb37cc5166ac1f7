"""Measure the time that the `train` step adds to mpirun, torchrun and TF_CONFIG for programs without this library."""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from measure import compare, table

from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.request import Request
from kfp_distributed.components.train.run.runners.local.interpreter import find_python
from kfp_distributed.components.train.run.runners.local.ports import free_ports
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.processes.group import ProcessGroup

_PROGRAMS = Path(__file__).parent / "programs"
_RANKS = 2
_WAYS = {
    "Horovod": ("horovod_script.py", {"distribution_type": "MPI", "number_of_workers": _RANKS}),
    "DistributedDataParallel": ("torch_script.py", {"distribution_type": "PyTorch", "number_of_workers": _RANKS - 1}),
    "MultiWorkerMirrored": (
        "tensorflow_script.py",
        {"distribution_type": "TF", "number_of_workers": _RANKS, "number_of_parameter_servers": 0},
    ),
}
_BY_HAND = {"MPI": "mpirun", "PyTorch": "torchrun", "TF": "TF_CONFIG"}


def launchers_table(data: Path, folder: Path, runs: int = 9) -> str:
    """Return a table of each program with 2 ranks, run `runs` times by the step and by its usual launcher."""
    rows = []
    for name, (script, distribution) in _WAYS.items():
        command, kind = ["python", str(_PROGRAMS / script), "--model_dir"], str(distribution["distribution_type"])
        python = find_python({"command": command}, kind)
        step = partial(_by_step, data, folder / kind, command, distribution)
        by_hand = partial(_by_hand, kind, python, command[1:], folder / kind)
        ours, hand, *rest = compare(runs, step, by_hand)
        rows.append([name, ours, hand, _BY_HAND[kind], *rest])
    return table(
        [
            "program of 600 steps on 2 ranks",
            "train step",
            "by hand",
            "usual launcher",
            "added",
            "added, shortest runs",
            "goal",
        ],
        rows,
    )


def _by_step(data: Path, folder: Path, command: Sequence[str], distribution: Mapping[str, object], run: int) -> float:
    folder /= f"{run}-step"
    folder.mkdir(parents=True)
    request = Request(
        train_uri=str(data / "train"),
        model_uri=str(folder / "model"),
        train_specification={"command": [*command, "{model_dir}"]},
        distribution_specification=distribution,
        identity=(str(folder),),
    )
    started = time.monotonic()
    launch(request, LocalRunner(), lambda line: None)
    return time.monotonic() - started


def _by_hand(distribution_type: str, python: str, script: Sequence[str], folder: Path, run: int) -> float:
    """Run a program by its usual launcher. Return the seconds."""
    folder /= f"{run}-hand"
    model, log = folder / "model", folder / "log"
    model.mkdir(parents=True)
    with log.open("wb") as output, ProcessGroup() as group:
        started, processes = time.monotonic(), []
        for argv, variables in _starts(distribution_type, python, [*script, str(model)]):
            environment = {**os.environ, **variables}
            processes.append(group.start(str(len(processes)), argv, env=environment, stdout=output))
        # If one process fails, another may wait for it forever.
        while None in (codes := [process.poll() for process in processes]) and not any(codes):
            time.sleep(0.01)
        seconds = time.monotonic() - started
    if any(codes):
        sys.exit(f"{script[0]} exited with {codes}:\n{log.read_text()[-4000:]}")
    return seconds


def _starts(
    distribution_type: str, python: str, script: Sequence[str]
) -> Sequence[tuple[Sequence[str], Mapping[str, str]]]:
    """Return the commands of the usual launcher, each with its environment variables."""
    if distribution_type == "MPI":
        options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(_RANKS)]
        return [([str(Path(python).with_name("mpirun")), *options, python, *script], {})]
    if distribution_type == "PyTorch":
        # torchrun 1.13 cannot parse its own defaults of the first two variables on Python 3.11. It polls its ranks
        # every 5 s by default. Later versions poll them every 0.1 s.
        variables = {"PET_REDIRECTS": "9:1", "PET_TEE": "9:1", "PET_MONITOR_INTERVAL": "0.1"}
        return [([python, "-m", "torch.distributed.run", f"--nproc_per_node={_RANKS}", *script], variables)]
    workers = [f"127.0.0.1:{port}" for port in free_ports(_RANKS)]
    configs = [
        json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
        for index in range(_RANKS)
    ]
    return [([python, *script], {"TF_CONFIG": config}) for config in configs]
