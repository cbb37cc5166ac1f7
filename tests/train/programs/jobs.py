"""Small jobs for the tests of `train`."""

import contextlib
import os
import sys
import time

import psutil

from kfp_distributed.components.train.describe.distributions import parse_distribution
from kfp_distributed.components.train.describe.topology import plan_topology
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.trainers.runtime.job_description import JobDescription

MARKER = "KFP_DISTRIBUTED_TEST_MARKER"
"""Environment variable by which a test finds its processes, whatever their parents are."""


def workers(count, **more):
    return {"distribution_type": "TF", "number_of_workers": count, "number_of_parameter_servers": 0, **more}


def make_job(argv, distribution=None, name="a-job", program=None, **environment):
    """Return a job whose replicas run `argv`."""
    specification = parse_distribution(distribution)
    topology = plan_topology(specification)
    description = JobDescription(
        name=name,
        program=program or {"command": ["unused"]},
        parameters={},
        train_uri="",
        validation_uri="",
        model_uri="",
        checkpoint_uri="",
        metrics_uri="",
        leader=topology.leader,
        data_replicas=topology.data_replicas,
    )
    return TrainingJob(name, topology, specification, description, tuple(argv), environment)


def python(program, *arguments):
    """Return the command of a small Python program that starts quickly."""
    return [sys.executable, "-S", "-c", program, *arguments]


def marked(marker):
    """Return the other processes with a marker in their environment."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(MARKER) == marker:
                processes.append(process)
    return processes


def wait_until(condition, seconds=120):
    """Wait until `condition()` is true; return its last value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value
