"""`kfp-distributed install`."""

from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Literal

import click
import yaml  # type: ignore[import-untyped]

from kfp_distributed.cli.options import Age, WrongArgument, check_account, connected, namespace_option, refused
from kfp_distributed.cli.setup.installation import (
    DEFAULT_ACCOUNT,
    change_line,
    installed_objects,
    plan_install,
    plan_prune,
)
from kfp_distributed.cli.setup.namespace import Namespace
from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.library import VERSION

_ATTEMPTS = 5
"""Attempts to plan the changes while others change the same objects. Two commands at once need two."""


@click.command()
@namespace_option("Namespace of the pipelines' pods.")
@click.option(
    "--service-account",
    default=DEFAULT_ACCOUNT,
    show_default=True,
    callback=check_account,
    help="ServiceAccount of the steps.",
)
@click.option(
    "--trainer",
    is_flag=True,
    help="Add the Role and the RoleBinding kfp-distributed-trainer, for trainings with Kubeflow Trainer v2.",
)
@click.option(
    "--deploy",
    is_flag=True,
    help="Add the Role and the RoleBinding kfp-distributed-deploy-model, for steps that deploy models with KServe.",
)
@click.option("--dry-run", is_flag=True, help="Ask the API server what would change, and change nothing.")
@click.option(
    "--output",
    type=click.Choice(["yaml"]),
    help="Print the objects instead of creating them, for kubectl apply --server-side. Needs no cluster.",
)
@click.option("--prune", type=Age(), help="Delete the libraries of other versions that are older, such as 30d or 12h.")
def command(
    namespace: str,
    service_account: str,
    trainer: bool,
    deploy: bool,
    dry_run: bool,
    output: Literal["yaml"] | None,
    prune: timedelta | None,
) -> None:
    """Put the library and the permissions of the steps into a namespace.

    Creates or updates the Role and the RoleBinding kfp-distributed-train, and the ConfigMap with the installed version
    of the library. With --trainer, it also lets the steps use Kubeflow Trainer v2, with --deploy it lets them deploy
    models. Libraries of other versions stay. A second run changes nothing.
    """
    account = service_account or DEFAULT_ACCOUNT
    if output:
        if prune is not None:
            raise WrongArgument("--prune needs a cluster; use it without --output")
        click.echo(_as_yaml(installed_objects(namespace, account, trainer=trainer, deploy=deploy)), nl=False)
        return
    api = connected(namespace)
    try:
        objects = installed_objects(api.namespace, account, trainer=trainer, deploy=deploy)
        changed = _install(Namespace(api, api.namespace), objects, prune, dry_run=dry_run)
    except ClusterError as error:
        raise refused(error) from None
    name, library = api.namespace, objects[-1]["metadata"]["name"]
    if dry_run:
        click.echo(f"Dry run: nothing was changed in namespace {name}.")
        return
    state = "now has" if changed else "already had"
    click.echo(f"Namespace {name} {state} the library {library} and the permissions of its steps.")
    click.echo(f"Check the cluster: kfp-distributed doctor --namespace {name} --service-account {account}")
    click.echo(f"Then upload a pipeline that kfp-distributed {VERSION} has compiled to Kubeflow Pipelines.")


def _install(target: Namespace, objects: list[Object], prune: timedelta | None, *, dry_run: bool) -> bool:
    """Make the changes and print them; return whether something has changed."""
    library = objects[-1]["metadata"]["name"]
    changed = False
    for attempts_left in reversed(range(_ATTEMPTS)):
        changes = plan_install(objects, target.read(objects))
        if prune is not None:
            changes += plan_prune(target.libraries(), library, datetime.now(UTC), prune)
        try:
            target.check(changes)
            for change in changes:
                if not dry_run:
                    target.apply([change])
                click.echo(change_line(change, dry_run=dry_run))
                changed |= change.action != "keep"
            return changed
        except ClusterError as error:
            if error.status != HTTPStatus.CONFLICT or not attempts_left:
                raise
            click.echo("Somebody else changed the namespace at the same time. Retrying.", err=True)
    return changed


def _as_yaml(objects: list[Object]) -> str:
    # The archive is one line: YAML would fold it.
    text: str = yaml.safe_dump_all(objects, sort_keys=False, width=float("inf"))
    return text
