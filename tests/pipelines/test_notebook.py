"""A local run in a notebook: progress is in the cell's output, and an interrupt leaves no process."""

import os
import signal
import time
from contextlib import contextmanager
from queue import Empty

import psutil
import pytest

manager = pytest.importorskip("jupyter_client.manager")

pytestmark = pytest.mark.takes(16)

CELL = """
import asyncio
assert asyncio.get_event_loop().is_running()
from kfp import dsl
from kfp_distributed.pipelines.local_run import local_run

@dsl.component
def train(seconds: float):
    import time
    print("2026-11-23T14:05:12Z INFO worker-0 epoch 3/6 loss=0.1234", flush=True)
    print("2026-11-23T14:05:12Z INFO worker-0 sample memory=512MiB rows/s=1200", flush=True)
    print("a line of the component", flush=True)
    time.sleep(seconds)

with local_run({folder!r}) as run:
    print("begins", run.log.name)
    train(seconds={seconds})
print("ended")
"""


@contextmanager
def kernel(folder, marker):
    """A kernel, and a function that runs a cell and yields its outputs as (type, content)."""
    environment = {**os.environ, "NOTEBOOK_MARKER": marker}
    km, kc = manager.start_new_kernel(kernel_name="python3", env=environment, cwd=str(folder))

    def outputs(code):
        request = kc.execute(code)
        until = time.monotonic() + 300
        while time.monotonic() < until:
            try:
                message = kc.get_iopub_msg(timeout=1)
            except Empty:
                continue
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return
            yield message["msg_type"], message["content"]
        raise AssertionError("the cell does not end")

    try:
        yield km, outputs
    finally:
        kc.stop_channels()
        km.shutdown_kernel(now=True)


def processes(marker, excluded):
    """Return the processes with a marker in their environment, except one."""
    marked = []
    for process in psutil.process_iter():
        try:
            alive = process.pid != excluded and process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get("NOTEBOOK_MARKER") == marker:
                marked.append(process)
        except psutil.Error:
            continue
    return marked


def test_progress_is_in_the_output_of_the_cell(tmp_path):
    with kernel(tmp_path, str(tmp_path)) as (_, outputs):
        seen = list(outputs(CELL.format(folder=str(tmp_path / "run"), seconds=0.1)))
    assert [content for kind, content in seen if kind == "error"] == []
    tables = [
        content["data"]["text/html"]
        for kind, content in seen
        if kind in ("display_data", "update_display_data") and "metrics" in str(content["data"])
    ]
    assert len({content["transient"]["display_id"] for kind, content in seen if kind == "update_display_data"}) == 1
    for text in ("train", "done", "worker-0", "3/6", "loss 0.1234", "1,200", "512 MiB"):
        assert text in tables[-1]
    text = str([content for kind, content in seen if kind in ("stream", "display_data")])
    for line in ("begins run.log", "a line of the component", "ended"):
        assert line in text
    assert "Executing task" not in text
    log = (tmp_path / "run" / "run.log").read_text()
    assert "Executing task 'train'" in log
    assert "worker-0 epoch 3/6" in log
    assert "sample" not in log


@pytest.mark.parametrize("whole_group", [True, False])
def test_an_interrupt_leaves_no_process(tmp_path, whole_group):
    """Jupyter sends SIGINT to the kernel's group of processes, other programs to the kernel alone."""
    marker = f"{tmp_path}-{whole_group}"
    with kernel(tmp_path, marker) as (km, outputs):
        pid = km.provisioner.pid
        seen = []
        for kind, content in outputs(CELL.format(folder=str(tmp_path / "run"), seconds=1000.0)):
            seen.append((kind, content))
            if kind != "execute_input" and "a line of the component" in str(content):
                assert processes(marker, pid)
                (os.killpg if whole_group else os.kill)(pid, signal.SIGINT)
        assert [content["ename"] for kind, content in seen if kind == "error"] == ["KeyboardInterrupt"]
        assert processes(marker, pid) == []
        assert ("stream", "usable\n") in [
            (kind, content.get("text")) for kind, content in outputs("print('usable')")
        ], "the kernel continues"
