"""`kfp-distributed compile`."""

from pathlib import Path

import click

from kfp_distributed.cli.options import WrongArgument
from kfp_distributed.components.delivery import (
    EVALUATE_IMAGE_VARIABLE,
    IMAGE_VARIABLE,
    PACKAGE_VARIABLE,
    Delivery,
)
from kfp_distributed.pipelines.specs import write_specs


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--image", default="", envvar=IMAGE_VARIABLE, show_envvar=True, help="Image of the steps, with the library inside."
)
@click.option(
    "--evaluate-image",
    default="",
    envvar=EVALUATE_IMAGE_VARIABLE,
    show_envvar=True,
    help="Image of evaluate. Default: that of the other steps.",
)
@click.option(
    "--package",
    default="",
    envvar=PACKAGE_VARIABLE,
    show_envvar=True,
    help="Requirement or URL by which pip installs the library.",
)
@click.option(
    "--task-config",
    is_flag=True,
    help="Apply the settings of the task train to the pods of its job. Requires a backend of KFP 2.15.",
)
def command(folder: Path, image: str, evaluate_image: str, package: str, task_config: bool) -> None:
    """Compile every component and pipeline to YAML files in FOLDER, which is created if missing.

    Without an image and a package, steps read the library from the ConfigMap that `kfp-distributed install` creates.
    """
    try:
        delivery = Delivery.from_options(image, evaluate_image, package)
    except ValueError as error:
        raise WrongArgument(str(error)) from None
    try:
        files = write_specs(folder, delivery, task_config=task_config)
    except OSError as error:
        raise click.ClickException(f"cannot write to {folder}: {error}") from None
    for file in files:
        click.echo(f"{file}  {file.stat().st_size:,} bytes")
