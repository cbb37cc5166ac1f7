"""A pipeline that trains on handwritten digits with several workers, evaluates the model and exports it."""

from kfp import dsl

from kfp_distributed.components import TensorFlow, evaluate, export_model, prepare_data, train
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.trainers import train_specification


@dsl.pipeline
def train_digits(workers: int = 3, epochs: int = 10) -> None:
    """Train with several workers, evaluate the model and export it."""
    data = prepare_data(source="digits")
    training = train(
        train_dataset=data.outputs["train_dataset"],
        validation_dataset=data.outputs["validation_dataset"],
        train_specification=train_specification("keras_classifier"),
        train_parameters={"epochs": epochs},
        distribution_specification=TensorFlow(workers=workers, parameter_servers=0),
    )
    model = training.outputs["model"]
    scores = evaluate(model=model, dataset=data.outputs["test_dataset"])
    export_model(model=model, metrics=scores.outputs["metrics"], model_name="digits")


if __name__ == "__main__":
    with local_run("digits-run"):
        train_digits()
