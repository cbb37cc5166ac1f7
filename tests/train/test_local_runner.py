"""The local runner with real processes."""

import json
import re
import shutil
import socket
import sys
import time
import uuid
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from package_index import package_index, write_wheel
from step_lines import brief_lines, into
from train.programs.jobs import MARKER, make_job, marked, python, workers

from kfp_distributed.components.train.run.conclusions.failures import FOR_GOOD
from kfp_distributed.components.train.run.conclusions.status import failure_cause
from kfp_distributed.components.train.run.facts import JobEnded, JobEvent, LogLine, ReplicaChanged
from kfp_distributed.components.train.run.launch import follow_job
from kfp_distributed.components.train.run.runners import newest_checkpoint
from kfp_distributed.components.train.run.runners.local import runner as local_runner
from kfp_distributed.components.train.run.runners.local.gpus import machine_gpus, visible_gpus
from kfp_distributed.components.train.run.runners.local.ports import free_ports, is_taken
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.runners.runner_choice import choose_runner
from kfp_distributed.components.train.tell.log_format import log
from kfp_distributed.library.packages import install_command

pytestmark = pytest.mark.takes(34)

SERVERS = {"distribution_type": "TF", "number_of_workers": 1, "number_of_parameter_servers": 1}
# A shell statement that runs a command depending on the name of the replica.
CASE = 'case "$KFP_DISTRIBUTED_REPLICA" in {} esac'


# A worker that binds its port of TF_CONFIG, as TensorFlow does.
LISTEN = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
address = config["cluster"]["worker"][config["task"]["index"]]
server = socket.create_server(("", int(address.split(":")[1])))
print("bound")
time.sleep(2)  # The port stays taken while the other workers bind theirs.
"""


def shell(text):
    return ["sh", "-c", text]


def run(job, **options):
    """Run a job to its end and return all facts."""
    runner = LocalRunner(**options)
    try:
        runner.check(job)
        runner.start(job)
        return list(runner.facts())
    finally:
        runner.stop()


def lines(facts, replica=None):
    return [fact.line for fact in facts if isinstance(fact, LogLine) and replica in (None, fact.replica)]


def changes(facts, *states):
    """Return the changes to these states in order, without times."""
    return [
        (fact.replica, fact.state, fact.exit_code, fact.signal, fact.restart)
        for fact in facts
        if isinstance(fact, ReplicaChanged) and fact.state in states
    ]


def events(facts):
    return [fact.text for fact in facts if isinstance(fact, JobEvent)][1:]


def verdict(facts):
    (end,) = [fact for fact in facts if isinstance(fact, JobEnded)]
    assert facts[-1] == end
    return end.succeeded, end.reason


def follow(job):
    """Run a job; return the lines of the step's log and the final status."""
    runner, log = LocalRunner(), []
    try:
        runner.check(job)
        runner.start(job)
        return log, follow_job(runner, job, into(log))
    finally:
        runner.stop()


def test_a_replica_has_its_own_folder_and_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "of another job")
    monkeypatch.setenv("RANK", "7")
    job = make_job(shell("pwd; env; cat; echo error >&2"), JOB_VARIABLE="of the job")
    facts = run(job)
    log = lines(facts, "worker-0")
    assert verdict(facts) == (True, "")
    folder = Path(log[0])
    assert folder.name == "worker-0"
    assert folder.parent.name.startswith("a-job-")
    assert not folder.parent.exists()
    environment = dict(line.split("=", 1) for line in log[1:-1])
    assert environment.keys().isdisjoint({"TF_CONFIG", "RANK"})
    expected = {
        "JOB_VARIABLE": "of the job",
        "KFP_DISTRIBUTED_REPLICA": "worker-0",
        "KFP_DISTRIBUTED_JOB": str(folder.parent / "code" / "job.json"),
        "PYTHONUNBUFFERED": "1",
    }
    assert environment | expected == environment
    assert log[-1] == "error"
    assert changes(facts, "starting", "running", "succeeded") == [
        ("worker-0", "starting", None, None, 0),
        ("worker-0", "running", None, None, 0),
        ("worker-0", "succeeded", 0, None, 0),
    ]


def test_the_end_of_a_replica_has_its_peak_memory():
    facts = run(make_job(shell(CASE.format("worker-0) echo 2048 > peak-memory;; *) : > peak-memory;;")), workers(2)))
    peaks = {fact.replica: fact.peak_memory for fact in facts if isinstance(fact, ReplicaChanged)}
    assert peaks == {"worker-0": 2048, "worker-1": 0}


def test_tf_config_has_free_ports_of_this_machine():
    facts = run(make_job(shell('echo "$TF_CONFIG"; cat "$KFP_DISTRIBUTED_JOB" | head -c 1'), workers(2)))
    first, second = (json.loads(lines(facts, f"worker-{index}")[0]) for index in range(2))
    addresses = first["cluster"]["worker"]
    assert [first["task"], second["task"]] == [{"type": "worker", "index": index} for index in range(2)]
    assert first["cluster"] == second["cluster"] == {"worker": addresses}
    assert len({address.partition(":")[2] for address in addresses}) == 2
    assert all(address.startswith("127.0.0.1:") for address in addresses)


PYTORCH = {"distribution_type": "PyTorch", "number_of_workers": 1}


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        ({}, [None]),
        (PYTORCH, ["", ""]),
        ({**PYTORCH, "worker_gpus": 1}, ["4", "5"]),
        ({**PYTORCH, "worker_gpus": 2}, ["4,5", "6,GPU-7"]),
        ({**PYTORCH, "worker_gpus": 3}, ["", ""]),
        ({"distribution_type": "TF", "number_of_workers": 2, "worker_gpus": 2}, ["", "", "", "4,5", "6,GPU-7"]),
        (
            {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 0, "worker_gpus": 2},
            ["4,5", "6,GPU-7"],
        ),
        ({"distribution_type": "MPI", "worker_gpus": 1}, ["4,5"]),
    ],
)
def test_a_replica_only_sees_its_own_gpus(distribution, expected):
    topology = make_job(["unused"], distribution).topology
    settings = [visible_gpus(topology, replica.name, ["4", "5", "6", "GPU-7"]) for replica in topology.replicas]
    assert [setting.get("CUDA_VISIBLE_DEVICES") for setting in settings[: len(expected)]] == expected


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("", []),
        ("-1", []),
        ("0", ["0"]),
        ("1,GPU-7", ["1", "GPU-7"]),
        ("2,-1,0", ["2"]),
        ("3,,0", ["3"]),
        ("0, 1, -1", ["0", "1"]),
        ("NoDevFiles", []),
        ("0,1,0", []),
        ("MIG-a/1/0", ["MIG-a/1/0"]),
    ],
)
def test_the_gpus_of_the_machine_are_those_that_cuda_sees(monkeypatch, visible, expected):
    """CUDA sees none from the first that is not valid, and none at all if one is there twice."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine_gpus() == expected


def test_missing_gpus_are_logged_and_no_replica_sees_a_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    facts = run(make_job(shell("echo gpus=$CUDA_VISIBLE_DEVICES"), {**PYTORCH, "worker_gpus": 1}))
    assert lines(facts) == ["gpus=", "gpus="]
    assert facts[0].text.startswith("2 GPUs are requested but 1 are available")


def test_keep_job_keeps_the_folder_of_the_job():
    facts = run(make_job(shell("pwd; echo data > file"), {"keep_job": True}))
    (folder,) = lines(facts)
    assert (Path(folder) / "file").read_text() == "data\n"
    shutil.rmtree(Path(folder).parent)


def test_ignored_settings_are_logged():
    program = {"command": ["unused"], "image": "tensorflow:2"}
    facts = run(make_job(shell("true"), {"volumes": [{"name": "data", "path": "/data"}]}, program=program))
    warnings = [fact.text for fact in facts if isinstance(fact, JobEvent) and fact.level == "WARNING"]
    assert [text.partition(";")[0] for text in warnings] == [
        "image of train_specification is ignored",
        "volumes of distribution_specification are ignored",
    ]
    assert sys.executable in warnings[0]


def test_packages_are_installed_only_for_the_job(tmp_path):
    wheel = write_wheel(tmp_path, "tiny-gadget", "1")
    program = {"command": ["unused"], "packages": [str(wheel)]}
    facts = run(make_job([sys.executable, "-c", "import tiny_gadget; print('imported')"], program=program))
    assert facts[0].text == f"installing {wheel}"
    assert lines(facts) == ["imported"]
    replica = [fact for fact in facts if isinstance(fact, ReplicaChanged)]
    assert [(fact.state, fact.restart) for fact in replica] == [
        ("installing", 0),
        ("starting", 0),
        ("running", 0),
        ("succeeded", 0),
    ]
    assert replica[0].install_seconds == 0
    assert replica[-1].install_seconds > 0
    with pytest.raises(ModuleNotFoundError):
        import_module("tiny_gadget")


def test_a_failed_installation_ends_the_job(tmp_path, monkeypatch):
    def command_without_waits(*arguments, **options):
        python, _, _, *options_of_pip = install_command(*arguments, **options)
        program = "from kfp_distributed.library import packages as p; p._WAITS = (0, 0, 0); p.main()"
        return [python, "-c", program, *options_of_pip]

    monkeypatch.setattr(local_runner, "install_command", command_without_waits)
    program = {"command": ["unused"], "packages": [str(tmp_path / "absent-1-py3-none-any.whl")]}
    facts = run(make_job(shell("echo started"), program=program))
    assert isinstance(facts[-1], JobEnded)
    assert not facts[-1].succeeded
    assert re.search(r"pip .*absent-1-py3-none-any\.whl", facts[-1].reason)
    assert lines(facts) == []


def test_an_unknown_runner_is_refused():
    with pytest.raises(ValueError, match=r"runner = 'cloud' .*auto, kubernetes, local"):
        choose_runner("cloud", log)


@pytest.mark.parametrize("name", ["auto", "local"])
def test_without_a_cluster_auto_is_the_local_runner(name, monkeypatch):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert isinstance(choose_runner(name, log), LocalRunner)


def test_serving_replicas_are_stopped_when_the_leader_has_succeeded():
    facts = run(
        make_job(shell(CASE.format("chief-0) sleep 0.3; echo done;; *) echo serving; exec sleep 1000;;")), SERVERS)
    )
    assert verdict(facts) == (True, "")
    assert changes(facts, "succeeded", "stopped", "failed") == [
        ("chief-0", "succeeded", 0, None, 0),
        ("ps-0", "stopped", None, None, 0),
        ("worker-0", "stopped", None, None, 0),
    ]
    assert {fact.reason for fact in facts if isinstance(fact, ReplicaChanged) and fact.state == "stopped"} == {
        "chief-0 succeeded"
    }


def test_the_failure_of_a_job_has_replica_exit_code_and_last_lines():
    program = CASE.format(
        "worker-1) for i in 1 2 3; do echo line $i; done; exit 3;; *) echo working; exec sleep 1000;;"
    )
    log, status = follow(make_job(shell(program), workers(3)))
    *tail, cause = failure_cause(status).splitlines()
    lines = ["[worker-1] line 1", "[worker-1] line 2", "[worker-1] line 3"]
    assert brief_lines("\n".join(tail)) == lines
    assert cause.startswith("worker-1 failed with exit code 3, ")
    assert cause.endswith(f" s after the start of the job. {FOR_GOOD}")
    assert {name: replica.state for name, replica in status.replicas.items()} == {
        "worker-0": "stopped",
        "worker-1": "failed",
        "worker-2": "stopped",
    }
    assert log[-1] == f"the job failed: {FOR_GOOD}"
    assert [line for line in log if line.startswith("[worker-1]")] == lines


def test_a_killed_replica_restarts_all_in_empty_folders_with_new_addresses(tmp_path):
    program = f"""
        ls -A; echo "$TF_CONFIG"; touch file
        mkdir {tmp_path}/$KFP_DISTRIBUTED_REPLICA 2> /dev/null || exec sleep 1
        test $KFP_DISTRIBUTED_REPLICA = worker-0 && exec sleep 1000
        until test -d {tmp_path}/worker-0; do sleep 0.1; done
        kill -9 $$"""
    job = make_job(shell(program), workers(2))
    facts = run(job)
    assert verdict(facts) == (True, "")
    assert events(facts) == ["restart 1 of 3: all replicas (worker-1 failed)"]
    assert changes(facts, "failed") == [("worker-1", "failed", None, 9, 0)]
    # Both sleep for a second, so either may end first.
    assert sorted(changes(facts, "succeeded")) == [
        ("worker-0", "succeeded", 0, None, 1),
        ("worker-1", "succeeded", 0, None, 1),
    ]
    # `ls` prints nothing, because the folders are empty at each start.
    first, second = lines(facts, "worker-0")
    assert first.replace('"', "").startswith("{cluster:")
    assert first != second


def test_restarts_are_limited():
    facts = run(make_job(shell("kill -9 $$"), {"restart_limit": 2}))
    assert verdict(facts) == (False, "Restart limit reached (restart_limit=2).")
    assert changes(facts, "failed") == [("worker-0", "failed", None, 9, restart) for restart in range(3)]


def test_an_outage_of_the_object_store_does_not_count_for_the_restart_limit(tmp_path):
    """The third start is killed, and its failure counts."""
    program = f"mkdir {tmp_path}/once 2> /dev/null || mkdir {tmp_path}/twice 2> /dev/null || kill -9 $$; exit 140"
    facts = run(make_job(shell(program), {"restart_limit": 0}))
    assert events(facts) == ["restart: all replicas (worker-0: the object store did not answer)"] * 2
    assert changes(facts, "failed") == [
        ("worker-0", "failed", 140, None, 0),
        ("worker-0", "failed", 140, None, 1),
        ("worker-0", "failed", None, 9, 2),
    ]
    assert verdict(facts) == (False, "Restart limit reached (restart_limit=0).")


def test_restarts_are_counted_since_the_newest_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(newest_checkpoint, "VALID_SECONDS", -1.0)
    # The second start stores a checkpoint.
    program = f"mkdir {tmp_path}/once 2> /dev/null || touch {tmp_path}/00000001.json; kill -9 $$"
    job = make_job(shell(program), {"restart_limit": 1})
    facts = run(replace(job, description=replace(job.description, checkpoint_uri=str(tmp_path))))
    assert verdict(facts) == (False, "Restart limit reached (restart_limit=1).")
    assert [fact.text for fact in facts if isinstance(fact, JobEvent) and fact.text.startswith("restart")] == [
        "restart 1 of 1: all replicas (worker-0 failed)",
        "restart 1 of 1: all replicas (worker-0 failed)",
    ]


def test_a_worker_of_parameter_servers_restarts_alone_with_the_same_address(tmp_path):
    program = CASE.format(
        f"""worker-0) echo "$TF_CONFIG"; mkdir {tmp_path}/once 2> /dev/null && sleep 0.2 && kill -9 $$
            touch {tmp_path}/again; exec sleep 1000;;
        ps-0) echo serving; exec sleep 1000;;
        chief-0) echo "$TF_CONFIG"; until test -e {tmp_path}/again; do sleep 0.1; done;;"""
    )
    facts = run(make_job(shell(program), SERVERS))
    assert verdict(facts) == (True, "")
    assert events(facts) == ["restart 1 of 3: worker-0 (worker-0 failed)"]
    first, second = lines(facts, "worker-0")
    assert first == second
    assert lines(facts, "ps-0") == ["serving"]
    assert len(lines(facts, "chief-0")) == 1


def test_restarts_are_counted_for_each_replica(tmp_path):
    program = CASE.format(
        f"""worker-*) mkdir {tmp_path}/$KFP_DISTRIBUTED_REPLICA 2> /dev/null && sleep 0.2 && kill -9 $$
            touch {tmp_path}/$KFP_DISTRIBUTED_REPLICA/again; exec sleep 1000;;
        ps-0) exec sleep 1000;;
        chief-0) until test -e {tmp_path}/worker-0/again -a -e {tmp_path}/worker-1/again; do sleep 0.1; done;;"""
    )
    facts = run(make_job(shell(program), {**SERVERS, "number_of_workers": 2, "restart_limit": 1}))
    assert verdict(facts) == (True, "")
    assert sorted(changes(facts, "failed")) == [(f"worker-{index}", "failed", None, 9, 0) for index in range(2)]


def test_a_taken_port_is_replaced_by_others():
    with socket.create_server(("", 0)) as other:
        taken = other.getsockname()[1]
        choices = iter([[*free_ports(1), taken], free_ports(2)])
        facts = run(make_job(python(LISTEN), workers(2)), choose_ports=lambda count: next(choices))
    assert verdict(facts) == (True, "")
    assert events(facts) == ["restart 1 of 3: all replicas (the port of worker-1 is taken)"]
    assert changes(facts, "failed") == [("worker-1", "failed", 1, None, 0)]
    assert lines(facts, "worker-1")[-1] == "bound"


def test_free_ports_are_free_and_different():
    ports = free_ports(50)
    assert len(set(ports)) == 50
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert is_taken(server.getsockname()[1])
    assert not any(is_taken(port) for port in ports)


@pytest.mark.parametrize(
    ("budgets", "program", "activity"),
    [
        ({"start_timeout": 1}, "exec sleep 1000", "no output since it started"),
        ({"silence_timeout": 1}, "echo a; exec sleep 1000", 'printed "a"'),
        ({"progress_timeout": 1}, "echo 'sample rows=5'; while echo a; do sleep 0.1; done", "read row 5"),
        ({"total_timeout": 1}, "while echo a; do sleep 0.1; done", 'printed "a"'),
    ],
)
def test_each_time_budget_ends_the_job(budgets, program, activity):
    start = time.monotonic()
    marker = uuid.uuid4().hex
    log, status = follow(make_job(shell(program), budgets, **{MARKER: marker}))
    assert time.monotonic() - start >= 1
    (name,) = budgets
    assert re.match(rf"the job failed: {name} ran out after 1 s: worker-0: {activity} \d[\d.]* s ago[.,]", log[-1])
    assert failure_cause(status) == status.ended.reason
    assert marked(marker) == []


def test_install_timeout_ends_an_installation_that_hangs(tmp_path, monkeypatch):
    write_wheel(tmp_path, "tiny-gadget", "1")
    program = {"command": ["unused"], "packages": ["tiny-gadget"]}
    budgets = {"install_timeout": 1, "scheduling_timeout": 0.5, "start_timeout": 0.5}
    with package_index(tmp_path) as index:
        index.stalls = 1
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        log, _ = follow(make_job(shell("echo started"), budgets, program=program))
    assert log[-1].startswith("the job failed: install_timeout ran out after 1 s: worker-0 not started")
