"""Models of PyTorch, in Python environments that have it."""

import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from environments import environment, trainer_python
from forked_replicas import forked

from kfp_distributed.components.model_formats.load import load_model

pytestmark = pytest.mark.takes(4)

PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np
import torch
from kfp_distributed.components.evaluate.weights import check_weights
from kfp_distributed.components.model_formats.load import load_model
from kfp_distributed.components.model_formats.model_inputs import plan_inputs
from kfp_distributed.storage.dataset import Column
from kfp_distributed.trainers.runtime.outputs.served_signature import served_signature

class ByColumn(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(2.0).reshape(1))
        self.dropout = torch.nn.Dropout(0.9)
    def forward(self, size, colour):
        return self.dropout(size * self.weight + 10 * colour)

class Matrix(ByColumn):
    def forward(self, x):
        return self.dropout((x * torch.cat([torch.full((1,), 10.0), self.weight])).sum(1, keepdim=True))

def error_of(action, *arguments):
    try:
        action(*arguments)
    except ValueError as error:
        return str(error)

folder, kind = Path(sys.argv[1]), sys.argv[2]
columns = [Column("colour", "category", "int32", vocabulary=("red", "blue")), Column("size", "number", "float32")]
answers = []
for number, (network, width) in enumerate([(ByColumn(), (1, 1)), (Matrix(), (2,))]):
    place = folder / str(number)
    place.mkdir()
    def save(network):
        if kind == "torchscript":
            torch.jit.script(network).save(str(place / "model.pt"))
            return
        example = tuple(torch.zeros(3, size) for size in width)
        sizes = tuple({0: torch.export.Dim("rows")} for _ in width)
        torch.export.save(torch.export.export(network.eval(), example, dynamic_shapes=sizes), place / "model.pt2")
    save(network)
    model = load_model(place)
    is_same = served_signature(place, kind) == model.signature.to_dict()
    plan = plan_inputs(model.signature, columns)
    output = model.run(plan.from_matrix(np.array([[1, 2], [2, 3], [0, 1], [0, 0]], np.float32)))
    check_weights(place)
    named = {name: values.tolist() for name, values in output.items()}
    shapes = {name: spec.shape for name, spec in model.signature.inputs.items()}
    failure = error_of(model.run, {name: np.zeros((1, 7), np.float32) for name in model.signature.inputs})
    with torch.no_grad():
        network.weight.fill_(float("nan"))
    save(network)
    answers.append([is_same, plan.by_column, shapes, named, failure, error_of(check_weights, place)])
print(json.dumps(answers))
"""


def run_program(python, tmp_path, program, *words):
    """Run a program with the library; return the last line that it prints, as JSON."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "kfp_distributed").symlink_to(Path(__file__).parents[2])
    file = tmp_path / "program.py"  # torch.jit.script reads the source.
    file.write_text(program)
    ran = subprocess.run(
        forked(python, file, tmp_path, *words),
        env={**os.environ, "PYTHONPATH": str(site), "_KFP_RUNTIME": "true"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", ["torchscript", "torch_export"])
def test_a_model_of_pytorch_takes_columns_by_name_or_the_matrix(tmp_path, kind):
    python = trainer_python("pytorch") if kind == "torchscript" else str(environment("torch2"))
    by_column, matrix = run_program(python, tmp_path, PROGRAM, kind)
    answers = {"output": [[14], [26], [2], [0]]}
    is_exported = kind == "torch_export"
    assert by_column[:4] == [True, True, dict.fromkeys(("size", "colour"), [None, 1] if is_exported else None), answers]
    assert matrix[:4] == [True, False, {"x": [None, 2] if is_exported else None}, answers]
    for *_, failure, nan in (by_column, matrix):
        assert failure is None or failure.startswith("the model failed: ")
        assert nan.startswith("1 of 1 weight tensors of the model have NaN")


OUTPUTS = """
import json, sys
from pathlib import Path
import torch
from kfp_distributed.components.model_formats.load import load_model

class WithNone(torch.nn.Module):
    def forward(self, x):
        return {"probabilities": x.softmax(1), "loss": None}

class WithNumber(torch.nn.Module):
    def forward(self, x):
        return x, 3

class Nested(torch.nn.Module):
    def forward(self, x):
        return {"probabilities": (x, x + 1)}

answers = []
for network in (WithNone(), WithNumber(), Nested()):
    torch.export.save(torch.export.export(network, (torch.zeros(3, 2),)), Path(sys.argv[1], "model.pt2"))
    try:
        load_model(Path(sys.argv[1]))
        answers.append("")
    except ValueError as error:
        answers.append(str(error))
print(json.dumps(answers))
"""


def test_a_program_that_returns_other_things_than_tensors_is_refused(tmp_path):
    for message in run_program(str(environment("torch2")), tmp_path, OUTPUTS):
        assert message.endswith("export a model whose forward returns a tensor, or a dictionary of tensors"), message


SCRIPT_OUTPUTS = """
import json, sys
from pathlib import Path
from typing import List, Optional, Tuple
import torch
from kfp_distributed.components.model_formats.load import load_model

class WithList(torch.nn.Module):
    def forward(self, x) -> Tuple[torch.Tensor, List[torch.Tensor]]:
        return x, [x]

class WithNumber(torch.nn.Module):
    def forward(self, x) -> Tuple[torch.Tensor, int]:
        return x, 3

class WithOptional(torch.nn.Module):
    def forward(self, x) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        return x, None

class Two(torch.nn.Module):
    def forward(self, x) -> Tuple[torch.Tensor, torch.Tensor]:
        return x, x

answers = []
for network in (WithList(), WithNumber(), WithOptional(), Two()):
    torch.jit.script(network).save(str(Path(sys.argv[1], "model.pt")))
    try:
        answers.append([*load_model(Path(sys.argv[1])).signature.outputs])
    except ValueError as error:
        answers.append(str(error))
print(json.dumps(answers))
"""


def test_a_torchscript_that_returns_other_things_than_tensors_is_refused(tmp_path):
    *others, two = run_program(trainer_python("pytorch"), tmp_path, SCRIPT_OUTPUTS)
    for message in others:
        assert re.search(
            r" returns Tuple\[.*: save a model whose forward returns a tensor, or a tuple of them$", message
        )
    assert two == ["output_0", "output_1"]


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed")
def test_an_environment_without_pytorch_is_told_what_to_install(tmp_path):
    (tmp_path / "model.pt2").write_bytes(b"program")
    with pytest.raises(ValueError, match=r"model.pt2 needs the Python package torch, .* make image-evaluate DRIVERS="):
        load_model(tmp_path)
