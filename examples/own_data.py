"""Train on a CSV file, such as `python own_data.py wine.csv cultivar`."""

import sys

from kfp import dsl

from kfp_distributed.components import evaluate, fingerprint_source, prepare_data, train
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.trainers import train_specification


@dsl.pipeline
def train_on_own_data(source: str, label_column: str) -> float:
    """Train on the rows of a file, and return the accuracy on the test dataset."""
    fingerprint = fingerprint_source(source=source)
    data = prepare_data(
        source=source,
        label_column=label_column,
        split={"test_fraction": 0.2},
        source_fingerprint=fingerprint.output,
    )
    training = train(
        train_dataset=data.outputs["train_dataset"],
        validation_dataset=data.outputs["validation_dataset"],
        train_specification=train_specification("keras_classifier"),
        train_parameters={"epochs": 40, "hidden_units": [32]},
    )
    scores = evaluate(model=training.outputs["model"], dataset=data.outputs["test_dataset"])
    return scores.outputs["score"]


if __name__ == "__main__":
    with local_run("own-data-run"):
        task = train_on_own_data(source=sys.argv[1], label_column=sys.argv[2])
    print(f"accuracy on the test dataset: {task.output:.3f}")
