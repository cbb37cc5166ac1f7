"""examples/notebooks/first_training.ipynb in Jupyter: it runs from top to bottom, and an interrupt ends a training."""

import os
import re
import signal
import time
from html import unescape
from pathlib import Path
from threading import Thread

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from process_hygiene import is_alive

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebooks" / "first_training.ipynb"

pytestmark = [pytest.mark.takes(86)]

LONG_TRAINING = """
with local_run("interrupted-run"):
    train_digits(workers=1, epochs=100_000)
"""


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory):
    """A Jupyter kernel in which all cells of the notebook have run."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = tmp_path_factory.mktemp("notebook")
    client = NotebookClient(notebook, timeout=480, resources={"metadata": {"path": str(folder)}})
    with client.setup_kernel():
        for number, cell in enumerate(notebook.cells):
            client.execute_cell(cell, number)
        yield client


def test_all_cells_run_and_show_the_reports(jupyter):
    cells = [cell for cell in jupyter.nb.cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    assert [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"] == []
    (accuracy,) = re.findall(r"accuracy on the test dataset: (\S+)", _text(cells[2]))
    assert float(accuracy) > 0.9
    pages = [output["data"]["text/html"] for output in outputs if "srcdoc" in str(output)]
    assert len(pages) == 3
    for page in pages:
        (source,) = re.findall(r'^<div><iframe sandbox="allow-scripts" .*srcdoc="([^"]*)"></iframe></div>$', page, re.S)
        assert unescape(source).lower().startswith("<!doctype html>")
    assert "'function': 'fit'" in cells[-1].outputs[-1]["data"]["text/plain"]


def test_an_interrupt_ends_all_processes_of_a_training(jupyter):
    """The kernel stays, and runs the next cell with the environment that it had before."""
    kernel = psutil.Process(jupyter.km.provisioner.pid)
    before = {process.pid for process in kernel.children(recursive=True)}
    started: list[psutil.Process] = []

    def interrupt_after_an_epoch() -> None:
        folder = Path(jupyter.resources["metadata"]["path"], "interrupted-run")
        until = time.monotonic() + 240
        while not list(folder.glob("artifacts/*/train/checkpoints/**/training.json")) and time.monotonic() < until:
            time.sleep(0.1)
        started.extend(process for process in kernel.children(recursive=True) if process.pid not in before)
        os.killpg(os.getpgid(kernel.pid), signal.SIGINT)  # As Jupyter does for "Interrupt kernel".

    thread = Thread(target=interrupt_after_an_epoch)
    thread.start()
    with pytest.raises(CellExecutionError, match="KeyboardInterrupt"):
        _run(jupyter, LONG_TRAINING)
    thread.join()
    assert len(started) >= 3, "the S3 server, the step train and its worker"
    assert _running(started) == []
    cell = _run(jupyter, "import os; print('AWS_SECRET_ACCESS_KEY' in os.environ)")
    assert _text(cell).strip() == "False"


def _run(jupyter, code):
    """Append a cell to the notebook, and run it."""
    cells = jupyter.nb.cells
    cells.append(nbformat.v4.new_code_cell(code))
    return jupyter.execute_cell(cells[-1], len(cells) - 1)


def _running(processes):
    """Return the processes that still run after half a minute."""
    until, running = time.monotonic() + 120, processes
    while running and time.monotonic() < until:
        time.sleep(0.1)
        running = [process for process in running if is_alive(process)]
    return running


def _text(cell):
    return "".join(output.get("text", "") for output in cell.outputs)
