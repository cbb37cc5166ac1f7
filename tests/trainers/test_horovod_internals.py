"""What workarounds/horovod_internals.py changes in Horovod, in the Horovod of the image."""

import json
import os
import subprocess

import pytest
from environments import trainer_python

pytestmark = [pytest.mark.takes(20), pytest.mark.of_libraries]


@pytest.fixture
def run(library_archive):
    def run_one(program, *arguments, seed="0"):
        result = subprocess.run(
            [trainer_python("horovod"), "-c", program, *arguments],
            env={**os.environ, "PYTHONPATH": str(library_archive), "PYTHONHASHSEED": seed},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
        )
        return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("[")]

    return run_one


ORDER = """
import json
from horovod.runner.elastic.discovery import HostManager
from kfp_distributed.trainers.runtime.workarounds.horovod_internals import order_hosts
from kfp_distributed.trainers.runtime.horovodrun import slot_number

hosts = {f"worker-{number}" for number in range(12)}
print(json.dumps(HostManager.order_available_hosts(hosts, ["worker-3"])))
order_hosts(slot_number)
print(json.dumps(HostManager.order_available_hosts(hosts, ["worker-3", "worker-99"])))
"""


def test_horovod_orders_hosts_as_their_set(run):
    expected = [f"worker-{number}" for number in (3, 0, 1, 2, *range(4, 12))]
    (first, changed), (second, _) = (run(ORDER, seed=seed) for seed in ("1", "2"))
    assert changed == expected
    assert first != second


DRIVER = """
import json, sys
from horovod.runner.elastic.driver import ElasticDriver
from kfp_distributed.trainers.runtime.workarounds import horovod_internals
from kfp_distributed.trainers.runtime.horovodrun import slot_number

if sys.argv[1] == "horovod":
    horovod_internals._driver_class = lambda fewest, slots: ElasticDriver
driver, port = horovod_internals.start_driver(lambda: {"worker-0": 1}, 2, 3, 1, 4, slot_number)
error = ""
try:
    driver.resume()
except Exception as exception:
    error = type(exception).__name__
print(json.dumps([error, driver.finished()]))
"""


@pytest.mark.parametrize(
    ("driver", "error_and_finished"),
    [("horovod", ["TimeoutException", False]), ("ours", ["", True])],
)
def test_horovod_waits_for_new_hosts_if_too_few_are_left(run, driver, error_and_finished):
    assert run(DRIVER, driver) == [error_and_finished]
