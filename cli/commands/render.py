"""`kfp-distributed render`."""

from typing import Any, Literal

import click

from kfp_distributed.cli.options import JsonOrFile, WrongArgument, check_image, check_namespace
from kfp_distributed.cli.rendered_objects import as_yaml, operator_line, planned_job, rendered_objects
from kfp_distributed.components.train.describe.manifests.cluster_settings import Operator
from kfp_distributed.storage.errors import StorageError

_JSON = JsonOrFile()


@click.command()
@click.option("--train-specification", type=_JSON, required=True, help="train_specification of the task.")
@click.option("--train-parameters", type=_JSON, default="{}", help="train_parameters of the task.")
@click.option(
    "--distribution-specification", type=_JSON, default="{}", help="Its distribution_specification. Default: one pod."
)
@click.option(
    "--namespace", default="kubeflow", callback=check_namespace, show_default=True, help="Namespace of the job."
)
@click.option(
    "--mpi-version",
    type=click.Choice(["v1", "v2beta1"]),
    help="Version of MPIJob that the cluster serves, see doctor. Default: v2beta1, or v1 for elastic training.",
)
@click.option(
    "--operator",
    type=click.Choice(["training-operator", "trainer"]),
    help="Operator that auto takes on the cluster, see doctor. Default: training-operator.",
)
@click.option(
    "--image", default="", callback=check_image, help="Image of the replicas. It replaces that of the specification."
)
@click.option("--full", is_flag=True, help="Print the archive of the library instead of its size.")
def command(
    train_specification: Any,  # noqa: ANN401
    train_parameters: Any,  # noqa: ANN401
    distribution_specification: Any,  # noqa: ANN401
    namespace: str,
    mpi_version: Literal["v1", "v2beta1"] | None,
    operator: Operator | None,
    image: str,
    full: bool,
) -> None:
    """Print the objects that a train step would create, as YAML.

    These are the job, its ConfigMap, the TrainingRuntime of a TrainJob, and PersistentVolumeClaims for volumes with a
    size. It needs neither a cluster nor a dataset. Of a base_model in a store, it reads the names of the files and
    config.json. The three dicts are JSON, or @ and the name of a file with JSON.
    """
    if image and isinstance(train_specification, dict):
        train_specification = {**train_specification, "image": image}
    elastic = isinstance(distribution_specification, dict) and distribution_specification.keys() & {
        "min_workers",
        "max_workers",
    }
    version = mpi_version or ("v1" if elastic else "v2beta1")
    try:
        job = planned_job(train_specification, train_parameters, distribution_specification)
        objects = rendered_objects(job, namespace, version, operator)
    except (OSError, StorageError, ValueError) as error:
        raise WrongArgument(str(error)) from None
    comments = operator_line(job.specification, operator) + "".join(f"# {note}\n" for note in job.notes)
    click.echo(as_yaml(objects, full=full, comments=comments), nl=False)
