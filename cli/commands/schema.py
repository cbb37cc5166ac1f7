"""`kfp-distributed schema`."""

import json

import click

from kfp_distributed.components.train.describe.distributions import distribution_schema


@click.command()
def command() -> None:
    """Print the JSON Schema (draft 2020-12) of a distribution_specification.

    Editors complete and check a file of JSON or YAML with it. It does not check numbers in texts, the content of JSON
    texts, and whether two values contradict each other. `kfp-distributed render` and the step check these as well.
    """
    click.echo(json.dumps(distribution_schema(), indent=2))
