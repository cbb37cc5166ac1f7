"""`kfp-distributed compile`."""

import os
from pathlib import Path

import click

from kfp_distributed.cli.options import WrongArgument
from kfp_distributed.components.delivery import EVALUATE_IMAGE_VARIABLE, Delivery
from kfp_distributed.pipelines.specs import write_specs


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--image", default="", help="Image of the steps that has the library.")
@click.option("--evaluate-image", default="", help="Image of evaluate. Default: the image of the other steps.")
@click.option("--package", default="", help="Requirement or URL by which pip installs the library.")
@click.option(
    "--task-config",
    is_flag=True,
    help="Apply the settings of the KFP task train to the pods of its job. Requires KFP 2.15 or later.",
)
def command(folder: Path, image: str, evaluate_image: str, package: str, task_config: bool) -> None:
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
    try:
        files = write_specs(folder, delivery, task_config=task_config)
    except OSError as error:
        raise click.ClickException(f"cannot write to {folder}: {error}") from None
    for file in files:
        click.echo(f"{file}  {file.stat().st_size:,} bytes")
