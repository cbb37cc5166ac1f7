"""The network of the PyTorch trainers and its export to ONNX."""

from collections.abc import Sequence
from inspect import signature
from pathlib import Path

import torch
from torch import Tensor, nn

from kfp_distributed.storage.dataset import DatasetManifest, input_shape
from kfp_distributed.trainers.architecture import record_data
from kfp_distributed.trainers.runtime.feed import categories, scaling


class Network(nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
    """A fully connected network from raw inputs, float32 [n, width] as `read_batches` yields them, to class logits.

    The network includes the preprocessing: numbers are scaled with the manifest's mean and standard deviation, a
    missing number counts as the mean, and categories are embedded.

    Attributes:
        data: Description of the training data for a checkpoint.
    """

    def __init__(self, manifest: DatasetManifest, hidden_units: Sequence[int]) -> None:
        super().__init__()
        self.data = record_data(manifest)
        for name, values in zip(("mean", "std", "scale"), scaling(manifest), strict=True):
            self.register_buffer(name, torch.tensor(values))
        counts = categories(manifest)
        self.category_columns = list(counts)
        self.embeddings = nn.ModuleList(nn.Embedding(count, min(count, 16)) for count in counts.values())
        sizes = [len(self.mean) + sum(embedding.embedding_dim for embedding in self.embeddings), *hidden_units]
        hidden = [layer for size in zip(sizes, hidden_units, strict=False) for layer in (nn.Linear(*size), nn.ReLU())]
        self.layers = nn.Sequential(*hidden, nn.Linear(sizes[-1], len(manifest.label.classes)))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits [n, classes]."""
        scaled = (inputs - self.mean) / self.std * self.scale
        parts = [torch.where(torch.isnan(scaled), torch.zeros_like(scaled), scaled)]
        columns = zip(self.category_columns, self.embeddings, strict=True)
        parts += [embed(inputs[:, column].long()) for column, embed in columns]
        return self.layers(torch.cat(parts, 1))


def export_onnx(network: nn.Module, manifest: DatasetManifest, file: Path) -> None:
    """Write an ONNX model that maps "features", float32 [n, *input_shape], to "probabilities", float32 [n, classes]."""
    serve = nn.Sequential(nn.Flatten(), network, nn.Softmax(1)).eval()
    # The default exporter of later versions needs more packages.
    exporter = {"dynamo": False} if "dynamo" in signature(torch.onnx.export).parameters else {}
    torch.onnx.export(
        serve,
        torch.zeros(1, *input_shape(manifest)),
        str(file),
        input_names=["features"],
        output_names=["probabilities"],
        dynamic_axes={"features": {0: "n"}, "probabilities": {0: "n"}},
        opset_version=13,
        **exporter,
    )
