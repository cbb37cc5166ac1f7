"""Search the parameters of a training on handwritten digits, and evaluate the best model.

python examples/tune_digits.py
"""

from kfp import dsl

from kfp_distributed.components import Choice, Float, evaluate, prepare_data, tune
from kfp_distributed.pipelines.local_run import local_run


@dsl.pipeline
def tune_digits(trials: int = 8) -> float:
    """Search the parameters of the training, and return the accuracy of the best model on the test dataset."""
    data = prepare_data(source="digits")
    best = tune(
        train_dataset=data.outputs["train_dataset"],
        validation_dataset=data.outputs["validation_dataset"],
        train_specification={"trainer": "keras_classifier"},
        train_parameters={"epochs": 8},
        search_space={
            "learning_rate": Float(1e-4, 1e-1, log=True),
            "hidden_units": Choice([[16], [64], [64, 32]]),
        },
        metric="val_loss",
        trials=trials,
        parallel_trials=2,
        search={"pruner": "median"},
    )
    evaluation = evaluate(model=best.outputs["model"], dataset=data.outputs["test_dataset"])
    return evaluation.outputs["score"]


if __name__ == "__main__":
    with local_run("tune-digits-run"):
        task = tune_digits()
    print(f"accuracy on the test dataset: {task.output:.3f}")
