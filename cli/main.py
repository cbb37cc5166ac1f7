"""`kfp-distributed`: what to run before the first training on a cluster."""

import json
import os
from typing import TYPE_CHECKING, Any, Literal

import click

from kfp_distributed.cli.options import (
    JsonOrFile,
    WrongArgument,
    as_namespace,
    check_account,
    check_bucket,
    check_image,
    check_namespace,
    doctor_command,
    endpoint_from_here,
)
from kfp_distributed.trainers.requirements import image_of

if TYPE_CHECKING:
    from kfp_distributed.cli.checks import Refusal

_JSON = JsonOrFile()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kfp-distributed")
def main() -> None:
    """Looks a cluster over before the first training, and shows what a training would create there."""


@main.command()
@click.option(
    "--namespace",
    default="",
    callback=check_namespace,
    help="Where the pipelines' pods run. Default: that of the configuration.",
)
@click.option(
    "--distribution", type=_JSON, help="A distribution_specification that must work. Default: any may be used."
)
@click.option(
    "--image",
    default="",
    callback=check_image,
    help="Image of the replicas. Default: that of a training that names none.",
)
@click.option(
    "--service-account",
    default="",
    callback=check_account,
    help="Whose permissions to look at, such as pipeline-runner. Default: yours.",
)
@click.option(
    "--bucket",
    default="",
    callback=check_bucket,
    help="s3://BUCKET/KEY to look at. Default: where the pipelines keep their artifacts.",
)
@click.pass_context
def doctor(
    context: click.Context,
    namespace: str,
    distribution: Any,  # noqa: ANN401
    image: str,
    service_account: str,
    bucket: str,
) -> None:
    """Says whether a cluster is in order for training, and what mends it where it is not.

    The cluster is the one of KUBECONFIG, in a pod its own. Nothing is created. The exit code is 1 where something has
    failed that training needs.
    """
    # Here, for kfp and the Kubernetes client take seconds to import, and --help should not.
    from kfp_distributed.cli.checks import Question, as_line
    from kfp_distributed.cli.survey import survey
    from kfp_distributed.components.train.runners.kubernetes.cluster_api import connect
    from kfp_distributed.components.train.runners.protocol import ClusterError
    from kfp_distributed.components.train.specification import parse_distribution

    try:
        wanted = None if distribution is None else parse_distribution(distribution)
        endpoint = endpoint_from_here(os.environ)
        api = connect(namespace)
    except ValueError as error:
        raise WrongArgument(str(error)) from None
    home = as_namespace("the namespace of the configuration's context", api.namespace)
    chosen = wanted.distribution_type if wanted else None
    asked = json.dumps(distribution) if wanted else ""
    question = Question(
        home,
        image or _default_image(chosen or "Job"),
        chosen,
        service_account,
        bucket,
        volumes=bool(wanted and wanted.volumes),
        claims=any("size" in dict(each) for each in (wanted.volumes if wanted else ())),
        endpoint=endpoint,
        command=doctor_command(home, distribution=asked, image=image, service_account=service_account, bucket=bucket),
    )
    levels = set()
    try:
        for check in survey(api, question):
            click.echo(as_line(check))
            levels.add(check.level)
    except ClusterError as error:
        raise click.ClickException(str(error)) from None
    context.exit(int("failed" in levels))


def _default_image(distribution_type: str) -> "str | Refusal":
    from kfp_distributed.cli.checks import Refusal

    try:
        return image_of({}, distribution_type, os.environ)
    except ValueError as error:
        return Refusal(error)


@main.command()
@click.option("--train-specification", type=_JSON, required=True, help="What to run.")
@click.option("--train-parameters", type=_JSON, default="{}", help="Its arguments.")
@click.option("--distribution-specification", type=_JSON, default="{}", help="How it is distributed. Default: one pod.")
@click.option(
    "--namespace", default="kubeflow", callback=check_namespace, show_default=True, help="Where the job would run."
)
@click.option(
    "--mpi-version",
    type=click.Choice(["v1", "v2beta1"]),
    help="The version of MPIJob that the cluster serves; doctor says it. Default: v2beta1, v1 for elastic training.",
)
@click.option(
    "--image", default="", callback=check_image, help="Image of the replicas, in place of the specification's."
)
@click.option("--full", is_flag=True, help="Print the source of our modules, too.")
def render(
    train_specification: Any,  # noqa: ANN401
    train_parameters: Any,  # noqa: ANN401
    distribution_specification: Any,  # noqa: ANN401
    namespace: str,
    mpi_version: Literal["v1", "v2beta1"] | None,
    image: str,
    full: bool,
) -> None:
    """Prints as YAML what a train step would create: the job, its ConfigMap, and claims for volumes with a size.

    Needs neither a cluster nor a dataset. The three dicts are JSON, or @ and the name of a file that has it.
    """
    from kfp_distributed.cli.render import as_yaml, rendered_objects

    if image and isinstance(train_specification, dict):
        train_specification = {**train_specification, "image": image}
    elastic = isinstance(distribution_specification, dict) and distribution_specification.keys() & {
        "min_workers",
        "max_workers",
    }
    version = mpi_version or ("v1" if elastic else "v2beta1")
    try:
        objects = rendered_objects(
            train_specification, train_parameters, distribution_specification, namespace, version
        )
    except ValueError as error:
        raise WrongArgument(str(error)) from None
    click.echo(as_yaml(objects, full=full), nl=False)
