"""`kfp-distributed uninstall`."""

import click

from kfp_distributed.cli.options import WrongArgument, connected, namespace_option, refused
from kfp_distributed.cli.setup.installation import (
    DEFAULT_ACCOUNT,
    change_line,
    installed_objects,
    libraries_of_version,
    plan_uninstall,
)
from kfp_distributed.cli.setup.namespace import Namespace
from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.cluster_api.objects import Object


@click.command()
@namespace_option("Namespace of the installation.")
@click.option(
    "--version",
    help="Delete only the libraries of this version, such as 0.1.0, or the one ConfigMap of this name. The Roles, the "
    "RoleBindings and other versions stay.",
)
@click.option("--dry-run", is_flag=True, help="Ask the API server what would be deleted, and delete nothing.")
def command(namespace: str, version: str | None, dry_run: bool) -> None:
    """Delete the RoleBindings, the Roles, and the libraries of all versions.

    Afterwards, steps fail unless their image has the library. With --version this applies only to steps that this
    version has compiled.
    """
    api = connected(namespace)
    target = Namespace(api, api.namespace)
    try:
        changes = plan_uninstall(
            _installed(target, api.namespace) if version is None else _libraries(target, api.namespace, version)
        )
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


def _installed(target: Namespace, name: str) -> list[Object | None]:
    *objects, _ = installed_objects(name, DEFAULT_ACCOUNT, trainer=True, deploy=True)
    # Each RoleBinding before its Role.
    pairs = zip(objects[1::2], objects[::2], strict=True)
    return [*target.read([item for pair in pairs for item in pair]), *target.libraries()]


def _libraries(target: Namespace, name: str, version: str) -> list[Object]:
    libraries = target.libraries()
    if chosen := libraries_of_version(libraries, version):
        return chosen
    names = ", ".join(sorted(library["metadata"]["name"] for library in libraries)) or "no library"
    raise WrongArgument(f"--version {version!r:.80} is not installed in namespace {name}, which has {names}")
