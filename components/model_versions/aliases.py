"""Aliases of exported versions, such as "production": names that people move from version to version.

An alias is one small object beside the claims, whose content is the number. So moving it is atomic.

An alias never names a deleted version. Setting an alias takes a claim on the number, and so does deleting. Of two
claims at a time, at least one sees the other (see claims.py), and withdraws. Without another claim, a deletion sees
every alias, and who sets an alias sees the record of every deletion.
"""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from kfp_distributed.components.model_versions.addresses import LATEST, check_alias, parse_alias_address
from kfp_distributed.components.model_versions.claims import CLAIMS, Claim, hold
from kfp_distributed.components.model_versions.versions import VersionRefused, read_complete, version_numbers
from kfp_distributed.storage.errors import KeyNotFound
from kfp_distributed.storage.kubeflow.credentials import Credentials
from kfp_distributed.storage.model import MODEL_MANIFEST
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import join_uri

_ATTEMPTS = 8


def deletion_record(model_name: str, version: int) -> str:
    """Return the key of the object which says that a version was deleted, so that its number is not used again."""
    return f"{_deletions(model_name)}/{version}"


def deleted_versions(store: Store, model_name: str) -> set[int]:
    """Return the numbers of the versions of a model whose deletion has begun."""
    return set(version_numbers(f"{name}/" for name in store.children(_deletions(model_name))))


def read_aliases(store: Store, model_name: str) -> dict[str, int]:
    """Return the stored aliases of a model: numbers by name."""
    aliases = {}
    for name in store.children(_aliases(model_name)):
        with suppress(KeyNotFound, ValueError):  # Removed since the listing, or not one of ours.
            aliases[name] = int(store.read(f"{_aliases(model_name)}/{name}"))
    return aliases


def set_alias(store: Store, model_name: str, version: int, alias: str) -> None:
    """Let an alias name a version. If it names another version, it moves.

    Raises:
        ValueError: The name is not allowed.
        VersionRefused: The version is not complete, was deleted, or is being changed.
        StorageError: The store refuses a request or does not answer.
    """
    check_alias(alias)
    with hold_version(store, model_name, version, f"sets the alias {alias}") as claim:
        check_usable(store, model_name, version)
        claim.check_time()
        store.write(f"{_aliases(model_name)}/{alias}", str(version).encode())


def remove_alias(store: Store, model_name: str, alias: str) -> None:
    """Delete an alias. The version stays.

    Raises:
        ValueError: The name is not allowed.
        VersionRefused: The model has no such alias.
        StorageError: The store refuses a request or does not answer.
    """
    check_alias(alias)
    key = f"{_aliases(model_name)}/{alias}"
    if not store.exists(key):
        raise _no_alias(store, model_name, alias)
    store.delete([key])


@contextmanager
def hold_version(store: Store, model_name: str, version: int, purpose: str) -> Iterator[Claim]:
    """Claim an existing number. The objects that a killed export left under it are deleted.

    Raises:
        VersionRefused: There are no objects under the number, or another process keeps a claim on it for seconds.
    """
    for _ in range(_ATTEMPTS):
        claim = Claim(model_name, version)
        with hold(store, claim, purpose) as state:
            if state == "exists":
                yield claim
                return
        uri = join_uri(store.uri, claim.target)
        if state == "free":
            raise no_version(uri)
        time.sleep(random.uniform(0, 1))  # Those that began together try again at different times.
    raise VersionRefused(
        f"{uri} is being exported, deleted or given an alias: try again later. If that process was killed, wait two "
        f"hours or delete {claim.siblings}"
    )


def no_version(uri: str) -> VersionRefused:
    """Return the error of a version that does not exist."""
    return VersionRefused(f"{uri} does not exist: kfp-distributed models list shows the versions")


def check_usable(store: Store, model_name: str, version: int) -> None:
    """Check that a version is complete and that its deletion has not begun.

    Raises:
        VersionRefused: It is not.
    """
    target = Claim(model_name, version).target
    uri = join_uri(store.uri, target)
    if store.exists(deletion_record(model_name, version)):
        raise VersionRefused(f"{uri} was deleted: choose another version")
    if not read_complete(store, target):
        raise VersionRefused(f"{uri} is not a complete version of export_model: choose another version")


def latest_version(store: Store, model_name: str) -> int:
    """Return the number of the highest complete version of a model; 0 if there is none."""
    deleted = deleted_versions(store, model_name)
    numbers = (number for number in version_numbers(store.children(model_name)) if number not in deleted)
    return next((number for number in numbers if read_complete(store, Claim(model_name, number).target)), 0)


def version_of(store: Store, model_name: str, alias: str) -> int:
    """Return the number of the version that an alias names.

    Raises:
        VersionRefused: The model has no such alias, or no complete version for "latest".
    """
    if alias == LATEST:
        if number := latest_version(store, model_name):
            return number
        raise VersionRefused(f"{join_uri(store.uri, model_name)} has no complete version: export one")
    try:
        return int(store.read(f"{_aliases(model_name)}/{alias}"))
    except (KeyNotFound, ValueError):
        raise _no_alias(store, model_name, alias) from None


def resolve(uri: str, credentials: Credentials | None = None) -> str:
    """Return the address of the version that ROOT/MODEL@ALIAS names, and any other address unchanged.

    Args:
        uri: The address.
        credentials: Credentials of the object store. Default: those of the environment.

    Raises:
        VersionRefused: The model has no such alias.
        ValueError: The address or the credentials are not valid.
        StorageError: The store refuses a request or does not answer.
    """
    address = parse_alias_address(uri)
    if not address:
        return uri
    store = open_store(address.root, credentials)
    try:
        version = version_of(store, address.model_name, address.alias)
    except VersionRefused:
        if open_store(uri, credentials).exists(MODEL_MANIFEST):  # A folder whose name has an "@".
            return uri
        raise
    return join_uri(address.root, address.model_name, str(version))


def _no_alias(store: Store, model_name: str, alias: str) -> VersionRefused:
    uri, names = join_uri(store.uri, model_name), [*read_aliases(store, model_name)]
    if latest_version(store, model_name):
        names.append(LATEST)
    if names:
        return VersionRefused(f"{uri} has no alias {alias!r}; it has {', '.join(names)}")
    return VersionRefused(
        f"{uri} has no alias {alias!r} and no complete version: kfp-distributed models list shows the models"
    )


def _aliases(model_name: str) -> str:
    return f"{CLAIMS}/{model_name}/aliases"


def _deletions(model_name: str) -> str:
    return f"{CLAIMS}/{model_name}/deleted"
