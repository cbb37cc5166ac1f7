"""What the `train` step adds to programs that know nothing of it: beside mpirun, torchrun and TF_CONFIG by hand."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from measure import compare, table

from kfp_distributed.components.train.launch import Request, launch
from kfp_distributed.components.train.runners.interpreter import find_python
from kfp_distributed.components.train.runners.local import LocalRunner
from kfp_distributed.components.train.runners.ports import free_ports

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


def launchers_table(data: Path, folder: Path, runs: int = 5) -> str:
    """Runs each program with 2 ranks by our step and by what people start it with, `runs` times each."""
    rows = []
    for name, (script, distribution) in _WAYS.items():
        command, kind = ["python", str(_PROGRAMS / script), "--model_dir"], str(distribution["distribution_type"])
        python = find_python({"command": command}, kind)
        starts, by_hand = _by_hand(kind, python, command[1:])
        step = partial(_by_step, data, folder / kind, command, distribution)
        ours, hand, *rest = compare(runs, step, partial(_together, starts, folder / kind))
        rows.append([name, ours, hand, by_hand, *rest])
    return table(
        ["program of 600 steps on 2 ranks", "train step", "by hand", "which is", "added", "by the shortest", "goal"],
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


def _by_hand(
    distribution_type: str, python: str, script: Sequence[str]
) -> tuple[list[tuple[list[str], dict[str, str]]], str]:
    """The processes that people start, each with what is set for it, and the name of what starts the ranks."""
    if distribution_type == "MPI":
        options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(_RANKS)]
        return [([str(Path(python).with_name("mpirun")), *options, python, *script], {})], "mpirun"
    if distribution_type == "PyTorch":
        # What torchrun 1.13 takes for these by default it cannot read itself under Python 3.11.
        variables = {"PET_REDIRECTS": "9:1", "PET_TEE": "9:1"}
        return [([python, "-m", "torch.distributed.run", f"--nproc_per_node={_RANKS}", *script], variables)], "torchrun"
    workers = [f"127.0.0.1:{port}" for port in free_ports(_RANKS)]
    configs = [
        json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
        for index in range(_RANKS)
    ]
    return [([python, *script], {"TF_CONFIG": config}) for config in configs], "TF_CONFIG"


def _together(starts: Sequence[tuple[Sequence[str], Mapping[str, str]]], folder: Path, run: int) -> float:
    """Runs processes side by side to their end."""
    started, folder = time.monotonic(), folder / f"{run}-hand"
    model, log = folder / "model", folder / "log"
    model.mkdir(parents=True)
    running = []
    try:
        with log.open("wb") as output:
            for argv, variables in starts:
                process = subprocess.Popen(
                    [*argv, str(model)], env={**os.environ, **variables}, stdout=output, stderr=subprocess.STDOUT
                )
                running.append(process)
        codes = [process.wait() for process in running]
    finally:
        for process in running:
            process.kill()
    if any(codes):
        sys.exit(f"{starts[0][0]} ended with {codes}:\n{log.read_text()[-4000:]}")
    return time.monotonic() - started
