"""`kfp-distributed compile`."""

import os
from collections.abc import Sequence
from pathlib import Path

import click

from kfp_distributed.cli.options import WrongArgument
from kfp_distributed.components.kfp_interface.delivery import EVALUATE_IMAGE_VARIABLE, Delivery
from kfp_distributed.pipelines.specs import write_specs
from kfp_distributed.trainers.programs.requirements import REPLICA_KINDS, checked_image


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--image", default="", help="Image of the steps that has the library.")
@click.option(
    "--evaluate-image", default="", help="Image of evaluate and predict. Default: the image of the other steps."
)
@click.option(
    "--replicas-image",
    multiple=True,
    metavar="[KIND=]IMAGE",
    help="Image of replicas whose train_specification names none. KIND is tensorflow, horovod, pytorch, "
    "horovod-pytorch or language-model. Default: all kinds. Can be repeated.",
)
@click.option("--package", default="", help="Requirement or URL by which pip installs the library.")
@click.option(
    "--task-config",
    is_flag=True,
    help="Apply the settings of the KFP task train to the pods of its job. Requires KFP 2.15 or later.",
)
def command(
    folder: Path, image: str, evaluate_image: str, replicas_image: Sequence[str], package: str, task_config: bool
) -> None:
    """Compile every component and pipeline to YAML files in FOLDER, which is created if missing.

    Without an image and a package, the environment variables KFP_DISTRIBUTED_IMAGE, KFP_DISTRIBUTED_EVALUATE_IMAGE and
    KFP_DISTRIBUTED_PACKAGE name them. If they are not set either, steps read the library from the ConfigMap that
    `kfp-distributed install` creates.
    """
    try:
        if image or package:
            delivery = Delivery.from_options(image, evaluate_image, package)
        else:
            # The image of evaluate adds to what the environment names for the other steps.
            added = {EVALUATE_IMAGE_VARIABLE: evaluate_image} if evaluate_image else {}
            delivery = Delivery.from_environment({**os.environ, **added})
    except ValueError as error:
        raise WrongArgument(str(error)) from None
    default, by_kind = _replica_images(replicas_image)
    try:
        files = write_specs(folder, delivery, task_config=task_config, replicas_image=default, replicas_images=by_kind)
    except OSError as error:
        raise click.ClickException(f"cannot write to {folder}: {error}") from None
    for file in files:
        click.echo(f"{file}  {file.stat().st_size:,} bytes")


def _replica_images(options: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return the image of all kinds of replicas ("" for none), and those of single kinds."""
    default, by_kind = "", dict[str, str]()
    for option in options:
        kind, separator, image = option.rpartition("=")
        if separator and kind not in REPLICA_KINDS:
            allowed = ", ".join(REPLICA_KINDS)
            raise WrongArgument(f"--replicas-image: {kind!r} is not a kind of replica images; allowed are {allowed}")
        try:
            image = checked_image(f"--replicas-image {kind}".strip(), image)
        except ValueError as error:
            raise WrongArgument(str(error)) from None
        if separator:
            by_kind[kind] = image
        else:
            default = image
    return default, by_kind
