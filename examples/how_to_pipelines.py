"""Pipelines of the how-to guides. Each one shows one way to call `train`; the guides include the marked lines."""

from kfp import dsl
from own_function import fit
from partitioned_embedding import partitioned_embedding
from two_stage_classifier import two_stage_classifier

from kfp_distributed.components import Delivery, evaluate, export_model, fingerprint_source, prepare_data, steps, train
from kfp_distributed.trainers import train_specification


@dsl.pipeline
def parameter_servers() -> None:
    """Train asynchronously with a chief, four workers and two parameter servers."""
    data = prepare_data(source="digits")
    # --8<-- [start:parameter-servers]
    train(
        train_dataset=data.outputs["train_dataset"],
        validation_dataset=data.outputs["validation_dataset"],
        train_specification=train_specification("keras_classifier"),
        train_parameters={"epochs": 20, "batch_size": 64, "learning_rate": 0.0005},
        distribution_specification={
            "distribution_type": "TF",
            "number_of_workers": 4,
            "number_of_parameter_servers": 2,
            "evaluator": True,
        },
    )
    # --8<-- [end:parameter-servers]


@dsl.pipeline
def two_stages() -> None:
    """Train a network whose layers are on two replicas."""
    data = prepare_data(source="digits")
    # --8<-- [start:two-stages]
    train(
        train_dataset=data.outputs["train_dataset"],
        validation_dataset=data.outputs["validation_dataset"],
        train_specification=train_specification(
            two_stage_classifier, image="registry.example.com/team/pytorch:0123456789ab"
        ),
        train_parameters={"hidden_units": [256, 128], "first_stage_layers": 1, "micro_batches": 8},
        distribution_specification={"distribution_type": "PyTorch", "number_of_workers": 1},
    )
    # --8<-- [end:two-stages]


@dsl.pipeline
def table_in_parts() -> None:
    """Train an embedding table that is divided among four parameter servers."""
    # --8<-- [start:fingerprint]
    source = "s3://data/ratings.parquet"
    fingerprint = fingerprint_source(source=source)
    data = prepare_data(source=source, label_column="rating", source_fingerprint=fingerprint.output)
    # --8<-- [end:fingerprint]
    # --8<-- [start:table-in-parts]
    train(
        train_dataset=data.outputs["train_dataset"],
        validation_dataset=data.outputs["validation_dataset"],
        train_specification=train_specification(
            partitioned_embedding, image="registry.example.com/team/tensorflow:0123456789ab"
        ),
        train_parameters={"column": "user", "table_rows": 10_000_000, "dimensions": 32, "assemble": False},
        distribution_specification={
            "distribution_type": "TF",
            "number_of_workers": 4,
            "number_of_parameter_servers": 4,
        },
    )
    # --8<-- [end:table-in-parts]


@dsl.pipeline
def remote_cluster() -> None:
    """Train on the cluster that the Secret gpu-cluster describes."""
    data = prepare_data(source="digits")
    # --8<-- [start:remote-cluster]
    train(
        train_dataset=data.outputs["train_dataset"],
        train_specification=train_specification("keras_classifier"),
        distribution_specification={"distribution_type": "TF", "number_of_workers": 2},
        cluster_configuration_secret="gpu-cluster",
    )
    # --8<-- [end:remote-cluster]


@dsl.pipeline
def resume() -> None:
    """Continue the training of another run."""
    data = prepare_data(source="digits")
    # --8<-- [start:resume]
    train(
        train_dataset=data.outputs["train_dataset"],
        train_specification=train_specification("keras_classifier"),
        train_parameters={"epochs": 40},
        checkpoint_uri="s3://team-a-training",
        resume_from="s3://team-a-training/train-8ccbe16558f9",
    )
    # --8<-- [end:resume]


@dsl.pipeline
def images() -> None:
    """Train with images for the steps and for the replicas."""
    # --8<-- [start:step-images]
    delivery = Delivery.image(
        "registry.example.com/team/steps:0123456789ab",
        evaluate="registry.example.com/team/evaluate:0123456789ab",
    )
    prepare_data, train, evaluate, export_model, fingerprint_source, *_ = steps(delivery)
    # --8<-- [end:step-images]
    source = "s3://data/flowers.parquet"
    fingerprint = fingerprint_source(source=source)
    data = prepare_data(source=source, label_column="species", source_fingerprint=fingerprint.output)
    # --8<-- [start:replica-image]
    training = train(
        train_dataset=data.outputs["train_dataset"],
        train_specification=train_specification(fit, image="registry.example.com/team/tensorflow:0123456789ab"),
    )
    # --8<-- [end:replica-image]
    scores = evaluate(model=training.outputs["model"], dataset=data.outputs["test_dataset"])
    export_model(model=training.outputs["model"], metrics=scores.outputs["metrics"], model_name="digits")


@dsl.pipeline
def task_settings() -> None:
    """Set resources and environment variables on the task."""
    # --8<-- [start:task-settings]
    train = steps(task_config=True).train
    # --8<-- [end:task-settings]
    data = prepare_data(source="digits")
    # --8<-- [start:task-settings-use]
    training = train(
        train_dataset=data.outputs["train_dataset"],
        train_specification=train_specification("keras_classifier"),
        distribution_specification={"distribution_type": "TF", "number_of_workers": 2},
    )
    training.set_cpu_limit("4").set_memory_limit("8Gi")
    training.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(1)
    training.set_env_variable("PIP_INDEX_URL", "https://index.example.com/simple")
    # --8<-- [end:task-settings-use]


# --8<-- [start:export-if-good-enough]
@dsl.pipeline
def export_if_good_enough(is_good_enough: bool, model: dsl.Input[dsl.Model], metrics: dsl.Input[dsl.Metrics]) -> None:
    """Export a model that its evaluation found good enough."""
    with dsl.If(is_good_enough == True):  # noqa: E712  (kfp compiles the comparison)
        export_model(model=model, metrics=metrics, model_name="digits")


# --8<-- [end:export-if-good-enough]


@dsl.pipeline
def threshold() -> None:
    """Export a model if its recall of one class is high enough."""
    data = prepare_data(source="digits")
    training = train(
        train_dataset=data.outputs["train_dataset"], train_specification=train_specification("keras_classifier")
    )
    # --8<-- [start:threshold]
    model = training.outputs["model"]
    scores = evaluate(model=model, dataset=data.outputs["test_dataset"], metric="recall_8", bound=0.95)
    export_if_good_enough(
        is_good_enough=scores.outputs["is_good_enough"], model=model, metrics=scores.outputs["metrics"]
    )
    # --8<-- [end:threshold]


PIPELINES = (
    parameter_servers,
    two_stages,
    table_in_parts,
    remote_cluster,
    resume,
    images,
    task_settings,
    threshold,
)
