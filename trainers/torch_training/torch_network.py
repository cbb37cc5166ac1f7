"""The network of the PyTorch trainers and its export to ONNX."""

from collections.abc import Sequence
from copy import deepcopy
from inspect import signature
from io import BytesIO
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn

from kfp_distributed.storage.dataset import DatasetManifest, Label, input_shape, width
from kfp_distributed.trainers.onnx_inputs import can_be_inputs, with_column_inputs
from kfp_distributed.trainers.resumed_network import record_data
from kfp_distributed.trainers.runtime.data_loading.epoch_steps import categories, fills, scaling
from kfp_distributed.trainers.runtime.data_loading.target import count_outputs


class Network(nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
    """A fully connected network from raw inputs, float32 [n, width] as `read_batches` yields them, to its outputs.

    The outputs are the logits of the classes, or the number to predict as `scale_labels` scales it. The network
    includes the preprocessing: `fills` replaces missing values, numbers are scaled with the manifest's mean and
    standard deviation or by their logarithms, and categories are embedded.

    Attributes:
        data: Description of the training data for a checkpoint.
    """

    def __init__(self, manifest: DatasetManifest, hidden_units: Sequence[int]) -> None:
        super().__init__()
        self.data = record_data(manifest)
        for name, values in scaling(manifest)._asdict().items():
            self.register_buffer(name, torch.tensor(values))
        self.has_logarithms = bool(self.log_unit.any())
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
        numbers = filled
        if self.has_logarithms:
            has_unit = self.log_unit > 0
            quotients = filled.abs() / torch.where(has_unit, self.log_unit, torch.ones_like(self.log_unit))
            logarithms = quotients.clamp(max=torch.finfo(torch.float32).max).log1p()
            numbers = torch.where(has_unit, filled.sign() * logarithms, filled)
        parts = [(numbers - self.mean) / self.std * self.scale]
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


class _KnownIndices(nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
    """Flattens rows, and gives one index to each category whose index is negative, NaN or not below its number."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        limits = torch.zeros(len(network.mean))
        for column, embedding in zip(network.category_columns, network.embeddings, strict=True):
            limits[column] = embedding.num_embeddings
        self.register_buffer("limits", limits)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = inputs.flatten(1)
        # Of NaN, both comparisons are false.
        is_known = (self.limits == 0) | ((rows >= 0) & (rows < self.limits))
        return torch.where(is_known, rows, self.limits)


def with_unknown(network: Network) -> Network:
    """Return a copy of a network whose categories have one more value, `len(vocabulary) + 1`, for an unknown text.

    No row has trained such a value. Its embedding is the mean of those of the vocabulary, so that the network answers
    as for an average category. That of a missing value would be wrong: rows without a value may have a meaning of their
    own, and without any such row its embedding is still the random initial one.
    """
    larger = deepcopy(network)
    for index, embedding in enumerate(larger.embeddings):
        table = embedding.weight.detach()
        known = table[1:] if len(table) > 1 else table
        larger.embeddings[index] = nn.Embedding.from_pretrained(torch.cat([table, known.mean(0, keepdim=True)]))
    return larger


def export_onnx(network: nn.Module, manifest: DatasetManifest, file: Path) -> None:
    """Write an ONNX model that maps raw rows to one output.

    It has an input for each column, by its name: of a number float32 [n, 1], of a category string [n, 1], of a tensor
    float32 [n, *shape]. NaN and "" stand for a missing value. If a column is called like the output, the model has one
    input "features" instead, float32 [n, *input_shape], as `read_batches` yields rows. The output is "probabilities",
    float32 [n, classes], or for a number "prediction", float64 [n, 1], in its own unit.

    A category that is not in the vocabulary is a value of its own for a `Network`, see `with_unknown`. Another network
    gets the index 0 of a missing one.

    Args:
        network: Maps rows, float32 [n, width], to logits or scaled numbers.
        manifest: Manifest of the training dataset.
        file: The file to write.
    """
    is_number = manifest.label.task == "regression"
    name, last = ("prediction", _InOwnUnit(manifest.label)) if is_number else ("probabilities", nn.Softmax(1))
    has_unknown = isinstance(network, Network)
    known = [_KnownIndices(network), with_unknown(network)] if has_unknown else [nn.Flatten(), network]
    by_column = can_be_inputs(manifest.columns, name)
    # The default exporter of later versions needs more packages.
    exporter = {"dynamo": False} if "dynamo" in signature(torch.onnx.export).parameters else {}
    content = BytesIO()
    torch.onnx.export(
        nn.Sequential(*known, last).eval(),
        torch.zeros(1, *([width(manifest)] if by_column else input_shape(manifest))),
        content,
        input_names=["features"],
        output_names=[name],
        dynamic_axes={"features": {0: "n"}, name: {0: "n"}},
        opset_version=13,
        **exporter,
    )
    model = onnx.load_from_string(content.getvalue())
    onnx.save(with_column_inputs(model, manifest.columns, has_unknown) if by_column else model, str(file))
