"""The diffs of docs/distribution.md for PyTorch: two ranks of the program end with the weights of one process."""

import json
import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest
from environments import trainer_python

from kfp_distributed.components.train.runners.local.ports import free_ports

PAGE = Path(__file__).parents[2] / "docs" / "distribution.md"

# What the page does not show. The batches are rank 0's and rank 1's, which has one more.
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
# Gloo's destructor may wait for ever (PyTorch 1.13): the way out is without it.
AFTER = """
weights = [[value for each in stage.parameters() for value in each.flatten().tolist()] for stage in (first, second)]
saved = [list(torch.load(file)) for file in Path(model_dir).iterdir()]
print(json.dumps({"weights": weights, "saved": saved}), flush=True)
os._exit(0)
"""


def code_of(section, marks, number=0):
    """The lines with these marks, of a diff of a section."""
    text = PAGE.read_text().split(f"\n## {section}\n")[1]
    diff = re.findall(r"^```diff\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[number]
    return textwrap.dedent("\n".join(line[1:] for line in diff.splitlines() if line[0] in marks))


def outcomes(folder, section, given):
    """What the program before the change says, and what each of two ranks says after it."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0]), "WORLD_SIZE": "2"}
    running = []
    for name, marks, variables in (
        ("-", " -", {}),
        ("0", " +", {**place, "RANK": "0"}),
        ("1", " +", {**place, "RANK": "1"}),
    ):
        (folder / name).mkdir()
        argv = [trainer_python("pytorch"), "-c", BEFORE + given + code_of(section, marks) + AFTER]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        running.append(subprocess.Popen(argv, cwd=folder / name, env=environment, stdout=subprocess.PIPE))
    try:
        said = [each.communicate(timeout=100)[0] for each in running]
    finally:
        for each in running:
            each.kill()
    assert [each.returncode for each in running] == [0, 0, 0]
    return map(json.loads, said)


def test_distributed_data_parallel(tmp_path):
    """A step of the program before has the rows of both ranks; in the last one there would be but one rank's."""
    given = """
rows = [tuple(map(torch.cat, zip(*pair))) for pair in zip(*parts)] if alone else parts[rank]
build_model, optimizer = lambda: whole, torch.optim.SGD(whole.parameters(), 0.1)
"""
    before, *ranks = outcomes(tmp_path, "DistributedDataParallel", given)
    for rank in ranks:
        for stage in (0, 1):
            assert rank["weights"][stage] == pytest.approx(before["weights"][stage], rel=1e-4)
    assert before["saved"]
    assert [ranks[0]["saved"], ranks[1]["saved"]] == [before["saved"], []]


def test_layers_on_two_ranks(tmp_path):
    """Each ends with its own stage's weights, and of the other's it has those of the beginning."""
    given = """
rows, model = (batches if alone else parts[rank]), whole
optimizer = torch.optim.SGD((model if alone else model[rank]).parameters(), 0.1)
"""
    before, *ranks = outcomes(tmp_path, "Model parallelism: layers on different replicas", given)
    for stage in (0, 1):
        assert ranks[stage]["weights"][stage] == pytest.approx(before["weights"][stage], rel=1e-4)
        assert ranks[1 - stage]["weights"][stage] != pytest.approx(before["weights"][stage], rel=1e-4)
