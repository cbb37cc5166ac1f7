"""The diffs of the how-to guides for PyTorch: two ranks of the program end with the weights of one process."""

import json
import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest
from environments import trainer_python
from forked_replicas import forked

from kfp_distributed.components.train.run.runners.local.ports import free_ports

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"

# Code that the page does not show. The batches are rank 0's and rank 1's, which has one more.
BEFORE = """
import json, os
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn

torch.manual_seed(0)
rank, alone = int(os.environ.get("RANK", 0)), "RANK" not in os.environ
model_dir, width, loss = os.getcwd(), 6, nn.CrossEntropyLoss()
batches = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(11)]
parts = batches[:5], batches[5:]
first, second = nn.Sequential(nn.Linear(4, width), nn.Tanh()), nn.Linear(width, 3)
whole = nn.Sequential(first, second)
"""
# Gloo's destructor may block forever (PyTorch 1.13), so the process exits without it.
AFTER = """
weights = [[value for tensor in stage.parameters() for value in tensor.flatten().tolist()] for stage in (first, second)]
saved = [list(torch.load(file)) for file in Path(model_dir).iterdir()]
print(json.dumps({"weights": weights, "saved": saved}), flush=True)
os._exit(0)
"""


def diffs_of(page):
    """Return the text of each diff of a how-to guide."""
    return re.findall(r"^```diff\n(.*?)^```", (HOW_TO / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE)


def code_of(page, marks, number=0):
    """Return the lines of a diff that begin with one of the marks."""
    lines = diffs_of(page)[number].splitlines()
    return textwrap.dedent("\n".join(line[1:] for line in lines if line[0] in marks))


def outcomes(folder, page, setup, number=0):
    """Return the results of the program before the change, and of each of two ranks after it."""
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0]), "WORLD_SIZE": "2"}
    processes = []
    for name, marks, variables in (
        ("-", " -", {}),
        ("0", " +", {**master, "RANK": "0"}),
        ("1", " +", {**master, "RANK": "1"}),
    ):
        (folder / name).mkdir()
        argv = forked(trainer_python("pytorch"), "-c", BEFORE + setup + code_of(page, marks, number) + AFTER)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        processes.append(subprocess.Popen(argv, cwd=folder / name, env=environment, stdout=subprocess.PIPE))
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0, 0]
    return map(json.loads, outputs)


def test_distributed_data_parallel(tmp_path):
    """One process uses the rows of both ranks in each step."""
    setup = """
rows = [tuple(map(torch.cat, zip(*pair))) for pair in zip(*parts)] if alone else parts[rank]
build_model, optimizer = lambda: whole, torch.optim.SGD(whole.parameters(), 0.1)
"""
    before, *ranks = outcomes(tmp_path, "ddp", setup)
    for rank in ranks:
        for stage in (0, 1):
            assert rank["weights"][stage] == pytest.approx(before["weights"][stage], rel=1e-4)
    assert before["saved"]
    assert [ranks[0]["saved"], ranks[1]["saved"]] == [before["saved"], []]


def test_layers_on_two_ranks(tmp_path):
    """Each rank trains the weights of its own stage, and leaves those of the other stage as they were."""
    setup = """
rows, model = (batches if alone else parts[rank]), whole
optimizer = torch.optim.SGD((model if alone else model[rank]).parameters(), 0.1)
"""
    before, *ranks = outcomes(tmp_path, "model-parallel", setup)
    for stage in (0, 1):
        assert ranks[stage]["weights"][stage] == pytest.approx(before["weights"][stage], rel=1e-4)
        assert ranks[1 - stage]["weights"][stage] != pytest.approx(before["weights"][stage], rel=1e-4)
