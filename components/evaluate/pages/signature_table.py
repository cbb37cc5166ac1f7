"""The inputs and outputs of a model as a table of the report (pure)."""

from kfp_distributed.reports.parts import Table
from kfp_distributed.storage.tensor_specs import Signature, shape_text

_TENSORS = 100


def signature_table(signature: Signature) -> Table:
    """Return a table with kind, name, type and shape of the first 100 inputs and of the first 100 outputs."""
    ends = (("input", signature.inputs), ("output", signature.outputs))
    return Table(
        ("kind", "name", "type", "shape"),
        tuple(
            (kind, spec.name, spec.dtype, shape_text(spec.shape))
            for kind, specs in ends
            for spec in list(specs.values())[:_TENSORS]
        ),
        len(signature.inputs) + len(signature.outputs),
    )
