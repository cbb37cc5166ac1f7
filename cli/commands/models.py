"""`kfp-distributed models`."""

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import click

from kfp_distributed.cli.options import WrongArgument, namespace_option, refused
from kfp_distributed.cli.pipeline_store import StoreNotReached, credentials_for
from kfp_distributed.cli.text_table import format_table
from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.model_versions.addresses import (
    ModelAddress,
    check_alias,
    check_model_name,
    export_root,
    parse_model_address,
)
from kfp_distributed.components.model_versions.aliases import remove_alias, set_alias, version_of
from kfp_distributed.components.model_versions.claims import clear_dead
from kfp_distributed.components.model_versions.deletion import (
    check_deletable,
    delete_version,
    find_surplus,
    finish_deletions,
)
from kfp_distributed.components.model_versions.inspection import (
    VersionSummary,
    check_files,
    compare_versions,
    describe_version,
    list_models,
    list_versions,
)
from kfp_distributed.components.model_versions.versions import EXPORT_MANIFEST
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.tensor_specs import shape_text
from kfp_distributed.storage.uri import join_uri

_output = click.option("--output", type=click.Choice(["text", "json"]), default="text", help="Default: text.")
_namespace = namespace_option("Namespace of the pipelines whose object store to use.")
_SHOWN_METRICS = 3


@click.group()
def command() -> None:
    """List, compare, name and delete models that export_model has exported.

    ROOT is the `bucket` of export_model: a bucket, an s3:// address, or a path that begins with / or a dot. Without a
    bucket it is minio://mlpipeline/models on an installation with the default pipeline root. ADDRESS is
    ROOT/MODEL/VERSION or ROOT/MODEL@ALIAS. The alias latest is the highest complete version.

    The object store is that of AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. Without keys, and for
    minio:// addresses without AWS_ENDPOINT_URL, it is that of the pipelines on the cluster of KUBECONFIG.
    """


@command.command("list")
@click.argument("root")
@click.argument("model", required=False, default="")
@_output
@_namespace
def _list(root: str, model: str, output: str, namespace: str) -> None:
    """List the models of a folder for exports, or the versions of a model."""
    with _errors_of_arguments():
        if model:
            check_model_name(model)
    with _stores(namespace, root) as open_root:
        store = open_root(export_root(root))
        if not model:
            models = [(name, list_versions(store, name)) for name in list_models(store)]
            rows = [_model_row(name, versions) for name, versions in models]
            nothing = f"no models in {_absence(store, '', 'digits/3')}{_hint(root)}"
            _print(output, ("model", "versions", "latest", "aliases"), rows, nothing)
            return
        versions = list_versions(store, model)
        if output == "json":
            click.echo(json.dumps([asdict(version) for version in versions], indent=1))
            return
        head = ("version", "state", "exported", "aliases", "format", "bytes", "metrics")
        nothing = f"no versions in {_absence(store, model, '3')}{_hint(root)}"
        _print(output, head, [_version_row(version) for version in versions], nothing)
        for version in versions:
            if version.problem:
                click.echo(version.problem)


@command.command("show")
@click.argument("address")
@_output
@_namespace
def _show(address: str, output: str, namespace: str) -> None:
    """Show the files, metrics and origin of a version."""
    with _stores(namespace, address) as open_root:
        version = describe_version(*_locate(open_root, address))
    if output == "json":
        click.echo(json.dumps(version, indent=1))
        return
    for key, value in version.items():
        if key not in ("files", "metrics", "model"):
            click.echo(f"{key}: {', '.join(value) if isinstance(value, list) else value}")
    for key, value in version["model"].items():
        if key in ("format", "job", "label", "training_data", "parameters"):
            click.echo(f"{key}: {value if isinstance(value, str) else json.dumps(value)}")
    for end, tensors in version["model"].get("signature", {}).items():
        for name, tensor in tensors.items():
            click.echo(f"{end[:-1]} {name}: {tensor['dtype']} {shape_text(tensor['shape'])}")
    for name, number in version["metrics"].items():
        click.echo(f"metric {name}: {number:.6g}")
    for file in version["files"]:
        click.echo(f"file {file['path']}: {file['size']} bytes, SHA-256 {file['sha256']}")


@command.command("verify")
@click.argument("address")
@click.option("--content", is_flag=True, help="Also read all bytes and compare their SHA-256.")
@_namespace
def _verify(address: str, content: bool, namespace: str) -> None:
    """Check the files of a version against its export.json."""
    with _stores(namespace, address) as open_root:
        store, name, number = _locate(open_root, address)
        damage, unlisted = check_files(store, name, number, content)
    unlisted_lines = [
        f"{path} is not listed in {EXPORT_MANIFEST}: the steps of this library ignore it" for path in unlisted
    ]
    for line in damage + unlisted_lines:
        click.echo(line)
    if damage:
        raise click.ClickException(f"{join_uri(store.uri, name, str(number))} is damaged: export the model again")
    click.echo(f"{join_uri(store.uri, name, str(number))} is intact")


@command.command("alias")
@click.argument("address")
@click.argument("name")
@click.option("--remove", is_flag=True, help="Remove the alias. ADDRESS is then ROOT/MODEL.")
@_namespace
def _alias(address: str, name: str, remove: bool, namespace: str) -> None:
    """Let an alias name a version. If it names another version, it moves."""
    with _errors_of_arguments():
        check_alias(name)
    model = _parse(address)
    if remove and (model.version or model.alias):
        raise WrongArgument(f"{address!r} names a version: give ROOT/MODEL with --remove")
    with _stores(namespace, address) as open_root:
        if remove:
            remove_alias(open_root(model.root), model.model_name, name)
            click.echo(f"removed {name}")
            return
        store, model_name, number = _locate(open_root, address)
        set_alias(store, model_name, number, name)
        click.echo(f"{name} is {join_uri(store.uri, model_name, str(number))}")


@command.command("delete")
@click.argument("addresses", nargs=-1, required=True, metavar="ADDRESS...")
@click.option("--keep", type=click.IntRange(1), help="Keep the newest N versions. ADDRESS is then ROOT/MODEL.")
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and delete nothing.")
@_namespace
def _delete(addresses: tuple[str, ...], keep: int | None, dry_run: bool, namespace: str) -> None:
    """Delete versions. One with an alias is refused, or kept with --keep. There is no question."""
    parsed = [_parse(address) for address in addresses]
    for address, model in zip(addresses, parsed, strict=True):
        if bool(keep) == bool(model.version or model.alias):
            raise WrongArgument(f"{address!r}: give ROOT/MODEL with --keep, and a version or an alias without it")
    is_done = False
    with _stores(namespace, *addresses) as open_root:
        for address, model in zip(addresses, parsed, strict=True):
            store, name = open_root(model.root), model.model_name
            if not dry_run:
                clear_dead(store, name)
                finish_deletions(store, name)
            for number in find_surplus(store, name, keep) if keep else [_locate(open_root, address)[2]]:
                check_deletable(store, name, number)
                if not dry_run:
                    delete_version(store, name, number)
                click.echo(f"{'would delete' if dry_run else 'deleted'} {join_uri(store.uri, name, str(number))}")
                is_done = True
    if not is_done:
        click.echo(f"nothing to delete: the newest {keep} versions and those with an alias are kept")


@command.command("diff")
@click.argument("first")
@click.argument("second")
@_output
@_namespace
def _diff(first: str, second: str, output: str, namespace: str) -> None:
    """Compare the metrics, the origin and the files of two versions."""
    with _stores(namespace, first, second) as open_root:
        versions = [describe_version(*_locate(open_root, address)) for address in (first, second)]
        rows = compare_versions(*versions)
    _print(output, ("what", "first", "second", "difference"), rows)


def _print(output: str, head: tuple[str, ...], rows: list[Any], nothing: str = "") -> None:
    if output == "json":
        click.echo(json.dumps([dict(zip(head, row, strict=True)) for row in rows], indent=1))
        return
    if nothing and not rows:
        click.echo(nothing)
        return
    for line in format_table(head, rows):
        click.echo(line)


def _absence(store: Store, folder: str, example: str) -> str:
    """Return the address of a folder without versions, and what it lacks, such as the example."""
    is_missing = not store.bucket and not Path(store.root, folder).is_dir()
    lack = "the folder does not exist" if is_missing else f"it has no folder of files such as {example}"
    return f"{join_uri(store.uri, folder)}: {lack}"


def _model_row(name: str, versions: list[VersionSummary]) -> tuple[str, ...]:
    complete = [version.version for version in versions if version.state == "complete"]
    aliases = [f"{alias}={version.version}" for version in versions for alias in version.aliases]
    return name, str(len(complete)), str(max(complete, default="")), ", ".join(aliases)


def _version_row(version: VersionSummary) -> tuple[str, ...]:
    metrics = [f"{name}={value:.4g}" for name, value in version.metrics.items()]
    more = ["…"] if len(metrics) > _SHOWN_METRICS else []
    return (
        str(version.version),
        version.state,
        version.exported_at,
        ", ".join(version.aliases),
        version.format,
        str(version.size) if version.size else "",
        " ".join(metrics[:_SHOWN_METRICS] + more),
    )


def _parse(address: str) -> ModelAddress:
    with _errors_of_arguments(address):
        return parse_model_address(address)


def _locate(open_root: Callable[[str], Store], address: str) -> tuple[Store, str, int]:
    """Return the store of an address, the name of the model, and the number of the version.

    Raises:
        WrongArgument: The address names no version.
    """
    model = _parse(address)
    if not model.version and not model.alias:
        problem = f"{address!r} names no version: give ROOT/MODEL/VERSION or ROOT/MODEL@ALIAS"
        raise WrongArgument(problem + _hint(address))
    store = open_root(model.root)
    return store, model.model_name, model.version or version_of(store, model.model_name, model.alias)


@contextmanager
def _errors_of_arguments(*addresses: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise WrongArgument(f"{error}{_hint(*addresses)}") from None


@contextmanager
def _stores(namespace: str, *addresses: str) -> Iterator[Callable[[str], Store]]:
    """Yield a function that opens the store of a folder for exports during the block."""
    again = shlex.join(["kfp-distributed", *sys.argv[1:]])
    with ExitStack() as stack:

        @cache
        def open_root(root: str) -> Store:
            return open_store(root, stack.enter_context(credentials_for(root, namespace, again)))

        try:
            yield open_root
        except (ValueError, StorageError, StoreNotReached) as error:
            raise click.ClickException(f"{error}{_hint(*addresses)}") from None
        except ClusterError as error:
            raise refused(error) from None


def _hint(*addresses: str) -> str:
    """Return the end of an error: which addresses were taken for those in a bucket, and are in a local folder too."""
    hint = ""
    for address in addresses:
        first = re.split("[/@]", address)[0]
        if export_root(address) != address and first and Path(first).is_dir():
            hint += f"; {first} was taken for a bucket. For the local folder {first}, give ./{address}"
    return hint
