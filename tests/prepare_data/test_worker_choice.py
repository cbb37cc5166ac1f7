"""The workers that the `distribution_specification` of a step names."""

import re

import pytest

from kfp_distributed.components.prepare_data.preparation_pods.preparation_request import LEAST_MEMORY
from kfp_distributed.components.worker_pool.worker_choice import parse_workers


@pytest.mark.parametrize(
    ("specification", "error"),
    [
        ({"number_of_workers": -1}, "number_of_workers = -1 is not a whole number from 0 to 10000"),
        ({"number_of_workers": "2.5"}, "number_of_workers = '2.5' is not a whole number"),
        (
            {"number_of_workers": 2, "dask_scheduler": "tcp://dask:8786"},
            "number_of_workers = 2 and dask_scheduler = 'tcp://dask:8786': the cluster of the scheduler has its own",
        ),
        ({"dask_scheduler": "dask:8786"}, "dask_scheduler = 'dask:8786' is not the address of a scheduler"),
        ({"dask_scheduler": "tls://dask:8786"}, "dask_scheduler = 'tls://dask:8786' is not the address of a scheduler"),
        ({"dask_schedule": "tcp://dask:8786"}, "is not a known key; did you mean dask_scheduler?"),
        ({"foo": 2}, "'foo' = 2 is not a known key; known keys: number_of_workers, worker_cpus, worker_memory,"),
        ({"worker": 2}, "'worker' = 2 is not a known key; did you mean number_of_workers or"),
        ({"worker_cpus": 2}, "distribution_specification has worker_cpus, but number_of_workers is 0"),
        (
            {"worker_cpus": 2, "dask_scheduler": "tcp://dask:8786"},
            "distribution_specification has worker_cpus beside dask_scheduler, whose workers run already",
        ),
        ({"number_of_workers": 2, "worker_gpus": 1}, "worker_gpus = 1: the step uses no GPUs; remove it"),
        ({"number_of_workers": 2, "ps_cpus": 3}, "ps_cpus = 3 is a key of TF, not of Job"),
        (
            {"number_of_workers": 2, "worker_memory": "64Mi"},
            "worker_memory = '64Mi' is too little for a worker of this step; set it to",
        ),
        ({"number_of_workers": 2, "worker_memory": "2 GB"}, "worker_memory = '2 GB' is not an amount of memory"),
        ("2", "distribution_specification = '2' is not a dict"),
    ],
)
def test_wrong_settings_of_workers_are_refused(specification, error):
    with pytest.raises(ValueError, match=f"^distribution_specification.*{re.escape(error)}|^{re.escape(error)}"):
        parse_workers(specification, LEAST_MEMORY)


def test_numbers_of_workers_come_as_kfp_delivers_them():
    assert [parse_workers({"number_of_workers": number}).count for number in (0, 2.0, "2", "2.0")] == [0, 2, 2, 2]
    assert parse_workers('{"number_of_workers": 3, "worker_memory": "1Gi"}').settings.worker_memory == "1Gi"


@pytest.mark.parametrize("specification", [None, "", {}, {"number_of_workers": None, "dask_scheduler": ""}])
def test_without_workers_the_step_is_alone(specification):
    workers = parse_workers(specification)
    assert (workers.count, workers.scheduler) == (0, "")


def test_a_scheduler_has_workers_of_its_own():
    workers = parse_workers({"dask_scheduler": "tcp://dask:8786"})
    assert (workers.count, workers.scheduler) == (0, "tcp://dask:8786")
