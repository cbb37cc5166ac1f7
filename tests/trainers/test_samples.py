"""Samples of a replica's resource usage: the line, and what is measured for it."""

import os
import subprocess
import sys

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_distributed.trainers.runtime.monitoring.samples import Sample, format_sample, split_sample
from kfp_distributed.trainers.runtime.monitoring.sampling import (
    RowRate,
    Usage,
    memory_kib,
    parse_gpus,
    read_gpus,
    read_usage,
    write_usage,
)


@pytest.mark.parametrize(
    ("sample", "line"),
    [
        (
            Sample(512, 1200.4, 85, 10240),
            "sample memory=512MiB rows/s=1200 gpu=85% gpu_memory=10240MiB",
        ),
        (Sample(512), "sample memory=512MiB"),
        (Sample(rows_per_second=0.25), "sample rows/s=0.2"),
        (Sample(gpu_percent=0, gpu_memory_mib=0), "sample gpu=0% gpu_memory=0MiB"),
        (
            Sample(512, 3, rows=12000, transferred_kib=51200),
            "sample memory=512MiB rows/s=3.0 rows=12000 transferred=51200KiB",
        ),
        (Sample(rows=7), "sample rows=7"),
        (Sample(transferred_kib=1), "sample transferred=1KiB"),
        (Sample(512, transferred_kib=1, store_seconds=0), "sample memory=512MiB transferred=1KiB store=0s"),
        (Sample(), ""),
    ],
)
def test_lines(sample, line):
    assert format_sample(sample) == line
    if line:
        rows = sample.rows_per_second
        read = sample._replace(rows_per_second=rows and float(f"{rows:.0f}" if rows > 10 else f"{rows:.1f}"))
        assert split_sample(line) == ("", read)
        assert split_sample(f"10%|## {line}") == ("10%|## ", read)


@given(
    memory=st.none() | st.integers(0, 2**40),
    rate=st.none() | st.integers(10, 10**9),
    gpu=st.none() | st.integers(0, 100),
    gpu_memory=st.none() | st.integers(0, 2**30),
    rows=st.none() | st.integers(0, 2**60),
    transferred=st.none() | st.integers(0, 2**50),
    store=st.none() | st.integers(0, 10**7),
)
def test_any_sample_is_read_as_it_was_printed(memory, rate, gpu, gpu_memory, rows, transferred, store):
    sample = Sample(memory, rate, gpu, gpu_memory, rows, transferred, store)
    if sample != Sample():
        assert split_sample(f"text {format_sample(sample)}") == ("text ", sample)


@pytest.mark.parametrize(
    "line", ["", "sample", "sample ", "a sample memory", "sample memory=5", "sample memory=5MiB of all", "x" * 1000]
)
def test_other_lines_stay_as_they_are(line):
    assert split_sample(line) == (line, None)


def test_rows_per_second():
    rate = RowRate()
    assert rate.update(0, 100, None) is None
    assert rate.update(300, 110, 107) == 100, "counting began 3 s ago"
    assert rate.update(1300, 120, 107) == 100
    assert rate.update(1300, 130, 107) == 0, "validation"
    ranks = RowRate()
    assert [ranks.update(rows, now, None) for rows, now in ((50, 10), (150, 20))] == [None, 10]


def test_memory_of_a_process_and_its_descendants():
    size = 100 * 2**20
    leaf = f"x = bytearray({size}); print('ready', flush=True); input()"
    argv = [
        sys.executable,
        "-S",
        "-c",
        f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {leaf!r}])",
    ]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        family = [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]
        expected = sum(process.memory_info().rss for process in family) / 1024
        assert memory_kib(child.pid) == pytest.approx(expected, rel=0.1)
        assert memory_kib(child.pid) > size / 1024
        child.communicate("\n")
    assert memory_kib(child.pid) == 0, "it has ended"


def test_without_proc_the_memory_is_unknown(tmp_path):
    assert memory_kib(os.getpid(), tmp_path / "nothing") == 0


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("85, 10240\n", (85, 10240)),
        ("85, 10240\n16, 2048\n", (50, 12288)),
        ("[N/A], 10240\n", (None, 10240)),
        ("[N/A], [N/A]\n", (None, None)),
        ("", (None, None)),
    ],
)
def test_gpus(text, gpus):
    assert parse_gpus(text) == gpus


def test_nvidia_smi_is_asked_for_the_visible_gpus(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\necho "$*" >{tmp_path}/asked\necho "7, 100"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert read_gpus({"CUDA_VISIBLE_DEVICES": "1,2"}) == (7, 100)
    assert (tmp_path / "asked").read_text() == (
        "--id 1,2 --query-gpu=utilization.gpu,memory.used --format=csv,noheader,nounits\n"
    )
    assert read_gpus({"CUDA_VISIBLE_DEVICES": ""}) == (None, None)
    program.write_text("#!/bin/sh\nexit 9\n")
    assert read_gpus({}) == (None, None)


@pytest.mark.takes(2)
def test_one_rank_prints_the_sum_of_a_replica(tmp_path, monkeypatch):
    """In a process of its own each: rank 1 stores its usage, rank 0, which has no rows after its first, prints."""
    program = """
import sys, time
from pathlib import Path
from kfp_distributed.storage.answers import note_answer
from kfp_distributed.trainers.runtime.monitoring import sampling
Path(sys.argv[1]).touch()
while not (Path("store").exists() and Path("print").exists()):
    time.sleep(0.01)
sampling.FIRST_SECONDS, sampling.INTERVAL_SECONDS = 0.2 if sys.argv[1] == "store" else 1, 1
sampling.count_rows(500 if sys.argv[1] == "print" else 10)
if sys.argv[1] == "store":
    note_answer("http://store:9000")
sampling.count_bytes(3 << 20 if sys.argv[1] == "print" else 4 << 20)
sampling.store_usage(1) if sys.argv[1] == "store" else sampling.print_samples([1])
begin = time.monotonic()
for tick in range(1, 31):
    time.sleep(max(0, begin + 0.1 * tick - time.monotonic()))
    sampling.count_rows(100 if sys.argv[1] == "store" else 0)
"""
    store, shown = (
        subprocess.Popen([sys.executable, "-c", program, role], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        for role in ("store", "print")
    )
    lines = shown.communicate()[0].splitlines()
    assert store.communicate()[0] == ""
    samples = [split_sample(line)[1] for line in lines]
    assert len(samples) >= 2
    assert samples[-1].rows_per_second > 0, "that of rank 1, which rank 0 has read"
    assert samples[-1].memory_mib > 20
    assert samples[-1].transferred_kib == 7 << 10
    assert 510 < samples[-1].rows <= 3510
    assert samples[-1].store_seconds is not None, "one rank has had an answer"


def test_a_rank_that_has_stored_nothing_yet(tmp_path):
    folder = tmp_path / "usage"
    assert read_usage(3, folder) == Usage(0, 0)
    write_usage(3, Usage(5, 7, 9), folder)
    assert read_usage(3, folder) == Usage(5, 7, 9)
    assert [file.name for file in folder.iterdir()] == ["3"]
