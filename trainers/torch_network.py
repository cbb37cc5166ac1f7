"""The network of the PyTorch trainers and its export to ONNX."""

from collections.abc import Sequence
from inspect import signature
from pathlib import Path

import torch
from torch import Tensor, nn

from kfp_distributed.storage.dataset import DatasetManifest, Label, input_shape
from kfp_distributed.trainers.architecture import record_data
from kfp_distributed.trainers.runtime.feed import categories, fills, scaling
from kfp_distributed.trainers.runtime.target import count_outputs


class Network(nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
    """A fully connected network from raw inputs, float32 [n, width] as `read_batches` yields them, to its outputs.

    The outputs are the logits of the classes, or the number to predict as `scale_labels` scales it. The network
    includes the preprocessing: `fills` replaces missing values, numbers are scaled with the manifest's mean and
    standard deviation, and categories are embedded.

    Attributes:
        data: Description of the training data for a checkpoint.
    """

    def __init__(self, manifest: DatasetManifest, hidden_units: Sequence[int]) -> None:
        super().__init__()
        self.data = record_data(manifest)
        for name, values in zip(("mean", "std", "scale"), scaling(manifest), strict=True):
            self.register_buffer(name, torch.tensor(values))
        self.register_buffer("fill", torch.tensor(fills(manifest)))
        counts = categories(manifest)
        self.category_columns = list(counts)
        self.embeddings = nn.ModuleList(nn.Embedding(count, min(count, 16)) for count in counts.values())
        sizes = [len(self.mean) + sum(embedding.embedding_dim for embedding in self.embeddings), *hidden_units]
        hidden = [layer for size in zip(sizes, hidden_units, strict=False) for layer in (nn.Linear(*size), nn.ReLU())]
        self.layers = nn.Sequential(*hidden, nn.Linear(sizes[-1], count_outputs(manifest.label)))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits [n, classes], or the scaled numbers [n, 1]."""
        filled = torch.where(torch.isnan(inputs), self.fill, inputs)
        parts = [(filled - self.mean) / self.std * self.scale]
        columns = zip(self.category_columns, self.embeddings, strict=True)
        parts += [embed(filled[:, column].long()) for column, embed in columns]
        return self.layers(torch.cat(parts, 1))


class _InOwnUnit(nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
    """Brings scaled numbers to the unit of the label, as float64."""

    def __init__(self, label: Label) -> None:
        super().__init__()
        self._mean, self._std = label.mean, label.std

    def forward(self, scaled: Tensor) -> Tensor:
        # A 32-bit float has too few digits for a mean that is large beside the deviation, such as that of times.
        return scaled.double() * self._std + self._mean


def export_onnx(network: nn.Module, manifest: DatasetManifest, file: Path) -> None:
    """Write an ONNX model that maps "features", float32 [n, *input_shape], to one output.

    The output is "probabilities", float32 [n, classes], or for a number "prediction", float64 [n, 1], in its own unit.
    """
    is_number = manifest.label.task == "regression"
    name, last = ("prediction", _InOwnUnit(manifest.label)) if is_number else ("probabilities", nn.Softmax(1))
    serve = nn.Sequential(nn.Flatten(), network, last).eval()
    # The default exporter of later versions needs more packages.
    exporter = {"dynamo": False} if "dynamo" in signature(torch.onnx.export).parameters else {}
    torch.onnx.export(
        serve,
        torch.zeros(1, *input_shape(manifest)),
        str(file),
        input_names=["features"],
        output_names=[name],
        dynamic_axes={"features": {0: "n"}, name: {0: "n"}},
        opset_version=13,
        **exporter,
    )
