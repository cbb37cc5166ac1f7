"""What a trained model of the table of samples.py answers for raw rows."""

import numpy as np
from evaluations import evaluate_model
from samples import COLUMNS

from kfp_distributed.components.model_formats.load import load_model
from kfp_distributed.components.model_formats.model_inputs import plan_inputs
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest


def assert_takes_raw_rows(folder, row):
    """Check the answers for rows by the names of the columns, of which a number has the shape `row`."""
    model = load_model(folder)
    assert {name: (spec.dtype, spec.shape) for name, spec in model.signature.inputs.items()} == {
        "size": ("float32", row),
        "color": ("string", row),
        "shop": ("string", row),
        "signal": ("float32", (None, 2, 3)),
    }
    inputs = plan_inputs(model.signature, COLUMNS)
    matrix = [[500, 1, 20, *range(6)], [np.nan, 2, 1, *[10] * 6], [400, 0, 0, *[12] * 6]]
    raw = {
        "size": [500, None, 400],
        "color": ["blue", "red", ""],
        "shop": ["shop 19", "shop 0", None],
        "signal": [np.arange(6).reshape(2, 3), np.full((2, 3), 10), np.full((2, 3), 12)],
    }
    answers = model.run(inputs.from_columns(raw))["probabilities"]
    np.testing.assert_array_equal(answers, model.run(inputs.from_matrix(np.array(matrix, np.float32)))["probabilities"])
    unknown = model.run(inputs.from_columns({**raw, "shop": ["shop 19", "shop 0", "shop 99"]}))["probabilities"]
    np.testing.assert_allclose(unknown[:2], answers[:2], err_msg="an unknown category fails no other row", rtol=1e-6)
    assert np.isfinite(unknown).all()
    assert abs(unknown[2] - answers[2]).max() > 1e-4, "an unknown category is not a missing one"


def validation_scores(folder, dataset):
    """Return loss and accuracy of a model, as `evaluate` computes them."""
    (folder / MODEL_MANIFEST).unlink(missing_ok=True)
    (folder / MODEL_MANIFEST).write_text(ModelManifest(files=describe_folder(folder)).to_json())
    evaluation, _ = evaluate_model(folder, dataset)
    return [evaluation.scores.loss, evaluation.scores.accuracy]
