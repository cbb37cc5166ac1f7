"""Reads and changes the objects of this library in a namespace of a cluster."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from kfp_distributed.cli.setup.installation import Action, Change
from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.library.archive import LIBRARY_LABELS

_RBAC = "rbac.authorization.k8s.io"
_GROUPS = {"Role": _RBAC, "RoleBinding": _RBAC, "ConfigMap": ""}
_PLURALS = {"Role": "roles", "RoleBinding": "rolebindings", "ConfigMap": "configmaps"}
_VERBS: dict[Action, tuple[str, ...]] = {
    "keep": (),
    "create": ("create",),
    "update": ("update",),
    "replace": ("delete", "create"),
    "delete": ("delete",),
}
_METHODS = {"create": "POST", "update": "PUT", "delete": "DELETE"}
_AWAY_SECONDS = 5.0
"""Seconds to wait for an API server that does not answer. Somebody is waiting for the command."""

T = TypeVar("T")


class Namespace:
    """The objects of this library in one namespace."""

    def __init__(self, api: ClusterApi, name: str) -> None:
        self._api = api
        self._name = name

    def read(self, objects: Sequence[Object]) -> list[Object | None]:
        """Return the existing objects of the same kinds and names; None for each that does not exist.

        Raises:
            ClusterError: The account may not read one of them, or the API server does not answer.
        """
        refused: list[str] = []
        existing = [_attempt(refused, "get", item["kind"], partial(self._get, item)) for item in objects]
        self._raise_refused(refused)
        return existing

    def libraries(self) -> list[Object]:
        """Return the ConfigMaps with libraries of any version.

        Raises:
            ClusterError: The account may not list ConfigMaps, or the API server does not answer.
        """
        refused: list[str] = []
        items = _attempt(refused, "list", "ConfigMap", self._list_libraries)
        self._raise_refused(refused)
        # The items of a list do not name their kind.
        return [{"apiVersion": "v1", "kind": "ConfigMap", **item} for item in items or ()]

    def check(self, changes: Sequence[Change]) -> None:
        """Ask the API server whether it would accept all changes, by a dry run that changes nothing.

        Raises:
            ClusterError: It would refuse some. The text names each missing permission.
        """
        refused: list[str] = []
        for change in changes:
            for verb in _VERBS[change.action]:
                _attempt(refused, verb, change.object["kind"], partial(self._try, change, verb))
        self._raise_refused(refused)

    def apply(self, changes: Sequence[Change]) -> None:
        """Make the changes.

        Raises:
            ClusterError: The API server refused one, or does not answer.
        """
        for change in changes:
            for verb in _VERBS[change.action]:
                self._send(verb, change.object)

    def _get(self, item: Object) -> Object | None:
        return self._api.read(f"{self._path(item['kind'])}/{item['metadata']['name']}", _AWAY_SECONDS)

    def _list_libraries(self) -> list[Object]:
        query = {"labelSelector": ",".join(f"{key}={value}" for key, value in LIBRARY_LABELS.items())}
        return self._api.list_objects(self._path("ConfigMap"), query, _AWAY_SECONDS).items

    def _try(self, change: Change, verb: str) -> None:
        kind = change.object["kind"]
        try:
            self._send(verb, change.object, dry_run=True)
        except ClusterError as error:
            # The dry run of a replacement has not really deleted the object.
            if change.action == "replace" and error.status == 409:
                return
            # A dry run has not created the Role of a new RoleBinding either. The Role is tried first.
            if kind == "RoleBinding" and error.status == 404:
                return
            if verb == "create" and error.status == 404:
                text = f"there is no namespace {self._name}; create it: kubectl create namespace {self._name}"
                raise ClusterError(404, text) from None
            raise

    def _send(self, verb: str, item: Object, *, dry_run: bool = False) -> None:
        path = self._path(item["kind"])
        if verb != "create":
            path = f"{path}/{item['metadata']['name']}"
        body = _deletion(item, dry_run=dry_run) if verb == "delete" else item
        query = {"fieldManager": "kfp-distributed", **({"dryRun": "All"} if dry_run else {})}
        try:
            self._api.call(_METHODS[verb], path, body, query, away_seconds=_AWAY_SECONDS)
        except ClusterError as error:
            # Another client has deleted the object.
            if not (verb == "delete" and error.status == 404):
                raise

    def _path(self, kind: str) -> str:
        root = f"/apis/{_GROUPS[kind]}/v1" if _GROUPS[kind] else "/api/v1"
        return f"{root}/namespaces/{self._name}/{_PLURALS[kind]}"

    def _raise_refused(self, permissions: Sequence[str]) -> None:
        if permissions:
            names = ", ".join(dict.fromkeys(permissions))
            raise ClusterError(
                403,
                f"this account may not, in namespace {self._name}: {names}. Nothing was changed. Ask an administrator "
                "of the namespace for these permissions, or to run this command",
            )


def _deletion(item: Object, *, dry_run: bool) -> Object:
    """Return the body of a deletion, which fails if another object has taken the name since the object was read.

    The API server reads `dryRun` of a deletion that has a body from the body alone, and ignores that of the query.
    """
    uid = item["metadata"].get("uid")
    return {**({"preconditions": {"uid": uid}} if uid else {}), **({"dryRun": ["All"]} if dry_run else {})}


def _attempt(refused: list[str], verb: str, kind: str, request: Callable[[], T]) -> T | None:
    """Make a request. If a permission is missing, add it to `refused`, so that all are reported at once."""
    try:
        return request()
    except ClusterError as error:
        permission = missing_permission(verb, kind, error)
        if not permission:
            raise
        refused.append(permission)
        return None


def missing_permission(verb: str, kind: str, error: ClusterError) -> str:
    """Return the permission whose lack a refusal reports, such as "create configmaps"; "" if it reports none.

    Args:
        verb: Verb of the request.
        kind: Kind of the object.
        error: The refusal.
    """
    resource = f"{_PLURALS[kind]}.{_GROUPS[kind]}".rstrip(".")
    if error.status != 403:
        return ""
    # Kubernetes lets an account grant only permissions that it has, or for which it has another verb.
    if "attempting to grant RBAC permissions" in str(error):
        other = "escalate" if kind == "Role" else "bind"
        return f"{verb} {resource} with permissions that it lacks itself (verb {other} on roles.{_RBAC})"
    # A quota is 403, too.
    return f"{verb} {resource}" if f"cannot {verb} resource" in str(error) else ""
