"""`kfp-distributed uninstall`."""

import click

from kfp_distributed.cli.installation import DEFAULT_ACCOUNT, change_line, installed_objects, plan_uninstall
from kfp_distributed.cli.namespace import Namespace
from kfp_distributed.cli.options import connected, namespace_option, refused
from kfp_distributed.components.train.runners.protocol import ClusterError


@click.command()
@namespace_option("Namespace of the installation.")
@click.option("--dry-run", is_flag=True, help="Ask the API server what would be deleted, and delete nothing.")
def command(namespace: str, dry_run: bool) -> None:
    """Delete the RoleBinding, the Role, and the libraries of all versions.

    Afterwards, steps fail unless their image has the library.
    """
    api = connected(namespace)
    target = Namespace(api, api.namespace)
    role, binding, _ = installed_objects(api.namespace, DEFAULT_ACCOUNT)
    try:
        changes = plan_uninstall([*target.read([binding, role]), *target.libraries()])
        target.check(changes)
        if not dry_run:
            target.apply(changes)
    except ClusterError as error:
        raise refused(error) from None
    for change in changes:
        click.echo(change_line(change, dry_run=dry_run))
    if not changes:
        click.echo(f"There is no installation of kfp-distributed in namespace {api.namespace}.")
    elif dry_run:
        click.echo(f"Dry run: nothing was changed in namespace {api.namespace}.")
