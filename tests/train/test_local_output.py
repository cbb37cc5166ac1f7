"""The local runner with many processes, much output, and several jobs."""

import threading
import uuid
from collections import Counter

import psutil
import pytest
from train.programs.jobs import MARKER, make_job, marked, python, workers
from train.test_local_runner import LISTEN, changes, lines, run, shell, verdict

from kfp_distributed.components.train.run.facts import LogLine, Tick
from kfp_distributed.components.train.run.runners.local.ports import free_ports
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner

pytestmark = pytest.mark.takes(12)


def test_child_processes_end_with_their_replica():
    marker = uuid.uuid4().hex
    facts = run(make_job(shell("sleep 1000 & (sleep 1000 & sleep 1000) & echo done"), **{MARKER: marker}))
    assert verdict(facts) == (True, "")
    assert lines(facts) == ["done"]
    assert marked(marker) == []


def test_fifty_replicas_that_only_print():
    program = "import os\nfor number in range(200): print(os.environ['KFP_DISTRIBUTED_REPLICA'], number)"
    facts = run(make_job(python(program), workers(50)))
    assert verdict(facts) == (True, "")
    for index in range(50):
        name = f"worker-{index}"
        assert lines(facts, name) == [f"{name} {number}" for number in range(200)]
    assert Counter(state for _, state, *_ in changes(facts, "starting", "succeeded", "failed", "stopped")) == {
        "starting": 50,
        "succeeded": 50,
    }


def test_no_line_of_a_large_output_is_lost_or_buffered():
    count, process = 1_000_000, psutil.Process()
    program = (
        f"for start in range(0, {count}, 1000): print(*map('{{:060d}}'.format, range(start, start + 1000)), sep='\\n')"
    )
    runner, next_number, quiet = LocalRunner(), 0, 0
    job = make_job(python(program))
    runner.check(job)
    runner.start(job)
    before = process.memory_info().rss
    try:
        for fact in runner.facts():
            if isinstance(fact, LogLine):
                assert int(fact.line) == next_number
                next_number += 1
            elif isinstance(fact, Tick):
                quiet += next_number < count
    finally:
        runner.stop()
    assert next_number == count
    assert quiet, "the runner has time for other things while lines arrive"
    assert process.memory_info().rss - before < 20e6


def test_two_jobs_run_at_the_same_time():
    facts_by_job, ports = {}, iter(free_ports(10))

    def run_one(name):
        # Different ports, because another test covers ports that are taken.
        own_ports = [next(ports) for _ in range(5)]
        facts_by_job[name] = run(make_job(python(LISTEN), workers(5), name), choose_ports=lambda count: own_ports)

    threads = [threading.Thread(target=run_one, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: (verdict(facts), lines(facts)) for name, facts in facts_by_job.items()} == {
        name: ((True, ""), ["bound"] * 5) for name in ("one", "other")
    }
