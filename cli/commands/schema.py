"""`kfp-distributed schema`."""

import json

import click

from kfp_distributed.components.prepare_data.split_parameter import split_schema
from kfp_distributed.components.train.describe.distributions import distribution_schema

_SCHEMAS = {"distribution_specification": distribution_schema, "split": split_schema}


@click.command()
@click.argument(
    "parameter", type=click.Choice([*_SCHEMAS]), default="distribution_specification", metavar="[PARAMETER]"
)
def command(parameter: str) -> None:
    """Print the JSON Schema (draft 2020-12) of a distribution_specification of train, or of a split.

    PARAMETER is distribution_specification, the default, or split, a parameter of prepare_data. The
    distribution_specification of prepare_data and predict has other keys.

    Editors complete and check a file of JSON or YAML with it. It does not check numbers in texts, the content of JSON
    texts, and whether two values contradict each other. `kfp-distributed render` and the step check these as well.
    """
    click.echo(json.dumps(_SCHEMAS[parameter](), indent=2))
