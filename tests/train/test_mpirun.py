import re

import pytest
from hypothesis import given, strategies

from kfp_distributed.components.train.describe.distributions import parse_distribution
from kfp_distributed.components.train.describe.mpirun import (
    RankLines,
    elastic_horovodrun,
    failed_worker,
    horovodrun,
    mpirun,
    printed_by,
)

# Messages of OpenMPI 4, OpenMPI 5 and horovodrun.
KILLED_4 = "mpirun noticed that process rank 3 with PID 0 on node a-job-worker-1 exited on signal 9 (Killed)."
KILLED_5 = "prterun noticed that process rank 3 with PID 25619 on node vm exited on"
EXITED_4 = "  Process name: [[51234,1],3]"
EXITED_5 = "   Process name: [prterun-vm-25658@1,3]"
EXITED_GLOO = "Process name: 3"


def test_mpirun_starts_the_program_in_all_ranks():
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


def test_horovodrun_starts_the_program_with_gloo():
    python, flag, program, *options = horovodrun(2, ["python3", "-m", "entry"], "/env/bin/python")
    assert (python, flag) == ("/env/bin/python", "-c")
    compile(program, "horovodrun", "exec")
    assert options == ["--gloo", "-np", "2", "python3", "-m", "entry"]


def test_an_elastic_training_is_started_with_its_counts_of_workers():
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
        ("launcher-0", "[2] <stdout>:no tag", ("launcher-0", "[2] <stdout>:no tag")),
        ("worker-0", "[1,3]<stdout>:a worker's own", ("worker-0", "[1,3]<stdout>:a worker's own")),
        ("launcher-0", "[1,4]<stdout>:unknown rank", ("launcher-0", "[1,4]<stdout>:unknown rank")),
    ],
)
def test_a_tagged_line_of_a_launcher_is_attributed_to_the_worker_of_its_rank(replica, line, expected):
    spec = parse_distribution({"distribution_type": "MPI", "slots_per_worker": 2})
    assert printed_by(replica, line, spec) == expected


@pytest.mark.parametrize("line", [KILLED_4, KILLED_5, EXITED_4, EXITED_5, EXITED_GLOO])
def test_the_failed_worker_is_read_from_the_lines_of_the_launcher(line):
    assert failed_worker(["Process name: 0", "of an earlier start", line, "---"], 2) == "worker-1"
    assert failed_worker(["---", line], 1) == "worker-3"


def test_the_failed_worker_may_be_unknown():
    assert failed_worker(["ssh: connect to host worker-0: refused"], 1) == ""


def join(*lines: str) -> list[str]:
    ranks = RankLines()
    return [*(text for line in lines for text in ranks.join(line)), *ranks.end()]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("[1,0]<stdout>:a", "mpirun: b", "[2]<stdout>:c"), ["[1,0]<stdout>:a", "mpirun: b", "[2]<stdout>:c"]),
        (("[1,0]<stdout>:li[1,0]<stdout>:ne 1",), ["[1,0]<stdout>:line 1"]),
        (
            ("[1,0]<stdout>:li[1,1]<stdout>:other", "[1,0]<stdout>:ne 1"),
            ["[1,1]<stdout>:other", "[1,0]<stdout>:line 1"],
        ),
        (("[1,0]<stdout>:line 1[1,0]<stdout>:", "[1,0]<stdout>:2"), ["[1,0]<stdout>:line 1", "[1,0]<stdout>:2"]),
        (("[1,0]<stdout>:a[1,0]<stderr>:b", "[1,0]<stdout>:c"), ["[1,0]<stderr>:b", "[1,0]<stdout>:ac"]),
        (("[1,0]<stdout>:begun[1,1]<stdout>:other",), ["[1,1]<stdout>:other", "[1,0]<stdout>:begun"]),
        (("warning[1,0]<stdout>:a",), ["warning", "[1,0]<stdout>:a"]),
    ],
)
def test_fragments_of_lines_are_joined(lines, expected):
    assert join(*lines) == expected


def test_a_line_that_never_ends_is_split():
    texts = join(*["[1,0]<stdout>:" + "x" * 4000 + "[1,1]<stdout>:y"] * 20)
    assert max(map(len, texts)) < 70_000
    assert "".join(text.removeprefix("[1,0]<stdout>:") for text in texts if "x" in text) == "x" * 80_000


@given(strategies.lists(strategies.tuples(strategies.integers(0, 2), strategies.integers(1, 60)), max_size=60))
def test_each_line_of_each_rank_is_joined_from_its_fragments(reads):
    """OpenMPI prints what it reads of a rank with a tag at its beginning and after each newline, but the last."""
    texts = [f"{rank} says\n\nmore {'x' * 30} {rank}\nend {rank}\n" * 9 for rank in range(3)]
    printed, places = "", [0, 0, 0]
    for rank, size in (*reads, *((rank, 10_000) for rank in range(3))):
        piece = texts[rank][places[rank] : places[rank] + size]
        places[rank] += len(piece)
        tag = f"[1,{rank}]<stdout>:"
        printed += re.sub(r"\n(?!\Z)", f"\n{tag}", tag + piece) if piece else ""
    joined = join(*printed.removesuffix("\n").split("\n"))
    for rank, text in enumerate(texts):
        tag = f"[1,{rank}]<stdout>:"
        assert [line.removeprefix(tag) for line in joined if line.startswith(tag)] == text.splitlines()
