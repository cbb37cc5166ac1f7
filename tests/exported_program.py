"""A program of torch.export, for tests without PyTorch."""

import json
from pathlib import Path
from zipfile import ZipFile

# As torch.export.save of PyTorch 2.6 wrote it. Its forward(size, *, colour) returns a dictionary.
PROGRAM = json.loads(Path(__file__).with_suffix(".json").read_text())
MEMBERS = ("serialized_exported_program.json", "model/models/model.json")
SIGNATURE = {
    "inputs": {"size": {"dtype": "float32", "shape": [None]}, "colour": {"dtype": "int64", "shape": [None]}},
    "outputs": {
        "probabilities": {"dtype": "float32", "shape": [None, 2]},
        "score": {"dtype": "float64", "shape": [None]},
    },
}


def write_program(folder, program=PROGRAM, member=MEMBERS[0]):
    """Write a model.pt2 that has the program without its weights; return its path."""
    folder.mkdir(exist_ok=True)
    with ZipFile(folder / "model.pt2", "w") as archive:
        archive.writestr(member, json.dumps(program))
    return folder / "model.pt2"
