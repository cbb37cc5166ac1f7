"""examples/notebooks/first_training.ipynb in Jupyter: it runs from top to bottom.

That an interrupt ends the processes of a notebook is shown by pipelines/test_notebook.py.
"""

import re
import sys
from html import unescape
from pathlib import Path

import nbformat
import pytest
from forked_replicas import forked
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebooks" / "first_training.ipynb"

pytestmark = [pytest.mark.takes(20)]


def test_all_cells_run_and_show_the_reports(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    # A fork starts its steps, and these their replicas, as forks.
    kernel = AsyncKernelManager(kernel_name="python3")
    kernel.kernel_spec.argv = forked(sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}")
    NotebookClient(notebook, km=kernel, timeout=480, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
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


def _text(cell):
    return "".join(output.get("text", "") for output in cell.outputs)
