"""Measure the time that the `train` step adds: the same replicas, started by the step and by hand."""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from measure import compare, table

from kfp_distributed.components.train.describe.topology import replica_environment
from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.request import Request, plan_job
from kfp_distributed.components.train.run.runners.local.ports import free_ports
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.trainers.runtime.job_description import JOB_VARIABLE

_DISTRIBUTIONS = {
    "3 workers, all-reduce": {"distribution_type": "TF", "number_of_workers": 3, "number_of_parameter_servers": 0},
    "chief, 2 parameter servers, 2 workers": {"distribution_type": "TF", "number_of_workers": 2},
    "one process": {"distribution_type": "Job"},
}


def training_table(data: Path, folder: Path, runs: int = 3) -> str:
    """Return a table of each training, run `runs` times by the step and by hand."""
    rows = []
    for name, distribution in _DISTRIBUTIONS.items():
        run_folder = folder / str(len(rows))
        step, hand = (partial(run, data, run_folder, distribution) for run in (_by_step, _by_hand))
        rows.append([name, *compare(runs, step, hand)])
    return table(
        ["training of 10 epochs on digits", "train step", "by hand", "added", "added, shortest runs", "goal"], rows
    )


def prepare(folder: Path, source: str | Path = "digits") -> Path:
    """Run `prepare_data`. Return a folder with the datasets train, validation and test."""
    from kfp import dsl

    from kfp_distributed.components.prepare_data.component import prepare_data

    def artifact(kind: type[dsl.Artifact], name: str) -> dsl.Artifact:
        return kind(name=name, uri=str(folder / name), metadata={})

    prepare_data(
        train_dataset=artifact(dsl.Dataset, "train"),
        validation_dataset=artifact(dsl.Dataset, "validation"),
        test_dataset=artifact(dsl.Dataset, "test"),
        overview=artifact(dsl.HTML, "overview"),
        source=str(source),
        label_column="label",
    )
    return folder


def _request(data: Path, folder: Path, distribution: dict[str, object]) -> Request:
    folder.mkdir(parents=True)
    return Request(
        train_uri=str(data / "train"),
        validation_uri=str(data / "validation"),
        model_uri=str(folder / "model"),
        train_specification={"trainer": "keras_classifier"},
        train_parameters={"epochs": 10},
        distribution_specification=distribution,
        identity=(str(folder),),
    )


def _by_step(data: Path, folder: Path, distribution: dict[str, object], run: int) -> float:
    started = time.monotonic()
    launch(_request(data, folder / f"{run}-step", distribution), LocalRunner(), lambda line: None)
    return time.monotonic() - started


def _by_hand(data: Path, folder: Path, distribution: dict[str, object], run: int) -> float:
    """Run the same program with the same TF_CONFIG as plain processes until the leader ends. Return the seconds."""
    started, folder = time.monotonic(), folder / f"{run}-hand"
    job = plan_job(_request(data, folder, distribution))
    file = folder / "job.json"
    file.write_text(job.description.to_json())
    names = [replica.name for replica in job.topology.replicas]
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, free_ports(len(names)), strict=True)}
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in names:
            (folder / name).mkdir()
            variables = {
                **os.environ,
                **replica_environment(job.topology, name, addresses, job.specification),
                JOB_VARIABLE: str(file),
            }
            with (folder / f"{name}.log").open("w") as log:
                processes[name] = subprocess.Popen(
                    [sys.executable, "-m", "kfp_distributed.trainers.runtime.entry"],
                    env=variables,
                    cwd=folder / name,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        code = processes[job.topology.leader].wait()
        for replica in job.topology.replicas:
            if replica.serves:
                processes[replica.name].kill()
            processes[replica.name].wait()
    finally:
        # After an error or Ctrl-C. kill() has no effect on processes that have ended.
        for process in processes.values():
            process.kill()
            process.wait()
    seconds = time.monotonic() - started
    if code != 0:
        raise RuntimeError((folder / f"{job.topology.leader}.log").read_text()[-4000:])
    json.loads((folder / "model" / "model.json").read_text())
    return seconds
