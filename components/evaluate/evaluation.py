"""The evaluation of a model: check model and dataset, score batch by batch, write the metrics and the report."""

import math
import reprlib
from pathlib import Path

import numpy as np

from kfp_distributed.components.artifacts import ClassificationMetricsArtifact, MetricsArtifact
from kfp_distributed.components.evaluate.classifier import load_classifier
from kfp_distributed.components.evaluate.finite import NonFiniteAnswers
from kfp_distributed.components.evaluate.report import Mistake, evaluation_page, row_png
from kfp_distributed.components.evaluate.scores import Scores, answer_matrix, check_probabilities
from kfp_distributed.components.evaluate.weights import check_weights
from kfp_distributed.reports.render import render_page
from kfp_distributed.storage.dataset import DATASET_MANIFEST, DatasetManifest, input_shape, read_batches
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import ModelManifest, verify_model_folder

_MISTAKES = 12
# keras.config.epsilon(): a probability below it counts as it, so that the loss is finite and the same as Keras'.
_SMALLEST_PROBABILITY = 1e-7


def run_evaluation(
    model: str,
    dataset: str,
    metrics: MetricsArtifact,
    classification_metrics: ClassificationMetricsArtifact,
    report: str,
) -> Scores:
    """Evaluate a model on a dataset.

    Args:
        model: Folder of the model and its model.json.
        dataset: Folder of the dataset.json and its shards.
        metrics: Output artifact for the metrics.
        classification_metrics: Output artifact for the confusion matrix.
        report: Path of the HTML report.

    Returns:
        The scores.

    Raises:
        ValueError: The dataset is empty or damaged. The model was trained on other columns or classes, cannot be
            loaded, has weights that are NaN, or returns no finite probabilities. No metrics are written.
        ModelIncomplete: The model lacks files, or a file differs from model.json.
    """
    scores, page = evaluate_model(Path(model), Path(dataset))
    for name, value in metric_values(scores).items():
        metrics.log_metric(name, value)
    if scores.drawn:
        classification_metrics.log_confusion_matrix(list(scores.drawn), scores.confusion.tolist())
    Path(report).write_text(page, encoding="utf-8")
    print(f"accuracy={scores.accuracy:.4f} loss={scores.loss:.4f} on {scores.rows} rows")
    return scores


def metric_values(scores: Scores) -> dict[str, float]:
    """Return the scores by the names that KFP shows. An undefined precision or recall is left out."""
    values = {"accuracy": scores.accuracy, "loss": scores.loss, "examples": scores.rows}
    for name, (precision, recall) in zip(scores.drawn, scores.precision_and_recall(), strict=False):
        values |= {f"precision_{name}": precision, f"recall_{name}": recall}
    return {name: value for name, value in values.items() if not math.isnan(value)}


def evaluate_model(model: Path, dataset: Path) -> tuple[Scores, str]:
    """Score a model on every row of a dataset. One batch at a time is in memory.

    Returns:
        The scores and the HTML report.

    Raises:
        ValueError: See `run_evaluation`.
        ModelIncomplete: See `run_evaluation`.
    """
    manifest = read_dataset(dataset)
    check_origin(verify_model_folder(model), manifest)
    shape, classes = input_shape(manifest), manifest.label.classes
    answer = load_classifier(model, shape)
    check_weights(model)
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    loss, first_row = 0.0, 0
    mistakes: list[Mistake] = []
    non_finite = NonFiniteAnswers(manifest.columns)
    for features, labels in read_batches(dataset, manifest):
        begin, first_row = first_row, first_row + len(labels)
        answers = answer_matrix(answer(features), len(labels), len(classes))
        finite = non_finite.add(answers, features, begin)
        probabilities = check_probabilities(answers[finite], begin + np.flatnonzero(finite))
        if non_finite.rows:
            continue  # Count the rest; there will be no scores.
        of_truth = probabilities[np.arange(len(labels)), labels]
        loss -= float(np.log(of_truth.clip(_SMALLEST_PROBABILITY)).sum())
        predicted = probabilities.argmax(axis=1)
        np.add.at(confusion, (labels, predicted), 1)
        for row in np.flatnonzero(predicted != labels)[: _MISTAKES - len(mistakes)]:
            caption = f"row {begin + row}: {classes[labels[row]]}, taken for {classes[predicted[row]]}"
            mistakes.append(Mistake(caption, row_png(features[row], shape)))
    non_finite.check(manifest.rows)
    scores = Scores(classes, confusion, loss / manifest.rows)
    content = evaluation_page(f"{manifest.label.name}: {manifest.split} split", scores, mistakes)
    return scores, render_page("evaluate.html", content)


def read_dataset(folder: Path) -> DatasetManifest:
    """Read a dataset's manifest and check the shards against it.

    Raises:
        FileNotFoundError: There is no manifest.
        ValueError: There is no row, or a shard is missing or damaged.
    """
    if not (folder / DATASET_MANIFEST).is_file():
        raise FileNotFoundError(f"{folder} has no {DATASET_MANIFEST}: pass a dataset that prepare_data made.")
    manifest = DatasetManifest.from_json((folder / DATASET_MANIFEST).read_text(encoding="utf-8"))
    if not manifest.rows:
        raise ValueError(f"split {manifest.split!r} has no rows: raise its fraction in prepare_data.")
    files = {(entry.path, entry.sha256) for entry in describe_folder(folder)}
    damaged = [shard.path for shard in manifest.shards if (shard.path, shard.sha256) not in files]
    if damaged:
        raise ValueError(f"shards {damaged} of the dataset in {folder} are missing or damaged: run prepare_data again.")
    return manifest


def check_origin(model: ModelManifest, dataset: DatasetManifest) -> None:
    """Check that a model was trained on the dataset's columns and classes. A manifest without columns is accepted.

    Raises:
        ValueError: It was not. Its scores would be wrong even where the shapes fit.
    """
    columns = [[column.name, column.kind, list(column.shape), list(column.vocabulary)] for column in dataset.columns]
    trained_columns = [[column[key] for key in ("name", "kind", "shape", "vocabulary")] for column in model.columns]
    current, trained = [list(dataset.label.classes), columns], [model.label.get("classes"), trained_columns]
    if model.columns and trained != current:
        raise ValueError(
            f"the model was trained on the classes and columns {reprlib.repr(trained)}, the dataset has "
            f"{reprlib.repr(current)}: evaluate it on a split of the dataset it was trained with."
        )
