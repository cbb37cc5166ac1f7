import pytest

from kfp_distributed.components.train.mpirun import elastic_horovodrun, failed_worker, horovodrun, mpirun, printed_by
from kfp_distributed.components.train.specification import parse_distribution

# As OpenMPI 4, OpenMPI 5 and horovodrun say it.
KILLED_4 = "mpirun noticed that process rank 3 with PID 0 on node a-job-worker-1 exited on signal 9 (Killed)."
KILLED_5 = "prterun noticed that process rank 3 with PID 25619 on node vm exited on"
EXITED_4 = "  Process name: [[51234,1],3]"
EXITED_5 = "   Process name: [prterun-vm-25658@1,3]"
EXITED_GLOO = "Process name: 3"


def test_the_command_of_openmpi():
    assert mpirun(4, ["python3", "-m", "entry"], "--oversubscribe") == [
        "mpirun",
        "--allow-run-as-root",
        "--bind-to",
        "none",
        "--tag-output",
        "-np",
        "4",
        "--oversubscribe",
        "python3",
        "-m",
        "entry",
    ]


def test_the_command_of_horovod():
    python, flag, program, *rest = horovodrun(2, ["python3", "-m", "entry"], "/env/bin/python")
    assert (python, flag) == ("/env/bin/python", "-c")
    compile(program, "horovodrun", "exec")
    assert rest == ["--gloo", "-np", "2", "python3", "-m", "entry"]


def test_the_command_of_elastic_training():
    keys = {"number_of_workers": 3, "min_workers": 2, "max_workers": 4, "slots_per_worker": 8}
    spec = parse_distribution({"distribution_type": "MPI", **keys})
    assert elastic_horovodrun(spec, ["python3", "-m", "entry"]) == [
        *("python3", "-m", "kfp_distributed.trainers.runtime.horovodrun"),
        *("3", "2", "4", "8"),
        *("python3", "-m", "entry"),
    ]


@pytest.mark.parametrize(
    ("replica", "line", "expected"),
    [
        ("launcher-0", "[1,0]<stdout>:epoch 1/2 loss=1", ("worker-0", "epoch 1/2 loss=1")),
        ("launcher-0", "[1,3]<stderr>: a [1,0]<stdout>:b", ("worker-1", "a [1,0]<stdout>:b")),
        ("launcher-0", "[2]<stdout>:", ("worker-1", "")),
        ("launcher-0", "[2] <stdout>:no mark", ("launcher-0", "[2] <stdout>:no mark")),
        ("worker-0", "[1,3]<stdout>:mine", ("worker-0", "[1,3]<stdout>:mine")),
        ("launcher-0", "[1,4]<stdout>:of nobody", ("launcher-0", "[1,4]<stdout>:of nobody")),
    ],
)
def test_the_lines_that_a_launcher_prints_are_those_of_its_ranks(replica, line, expected):
    spec = parse_distribution({"distribution_type": "MPI", "slots_per_worker": 2})
    assert printed_by(replica, line, spec) == expected


@pytest.mark.parametrize("line", [KILLED_4, KILLED_5, EXITED_4, EXITED_5, EXITED_GLOO])
def test_the_launcher_tells_whose_process_failed(line):
    assert failed_worker(["Process name: 0", "of an earlier start", line, "---"], 2) == "worker-1"
    assert failed_worker(["---", line], 1) == "worker-3"


def test_a_launcher_may_not_tell():
    assert failed_worker(["ssh: connect to host worker-0: refused"], 1) == ""
