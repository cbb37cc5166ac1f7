"""A fake API server for `kfp-distributed install`: the objects of one namespace."""

import copy

from kfp_distributed.cluster_api.client import ClusterApi, ClusterError

VERBS = {"GET": "get", "POST": "create", "PUT": "update", "DELETE": "delete"}


class NamespaceApi(ClusterApi):
    """Stores objects, denies permissions, and changes nothing in a dry run.

    Attributes:
        objects: The objects by kind and name, such as ("configmaps", "a-name").
        denied: Missing permissions, such as "create roles".
        changes: The requests that changed an object.
    """

    def __init__(self, namespace="team", denied=(), exists=True):
        self.namespace = namespace
        self.denied = denied
        self.exists = exists
        self.objects = {}
        self.changes = []

    def add(self, *objects):
        for item in objects:
            self.objects[f"{item['kind'].lower()}s", item["metadata"]["name"]] = copy.deepcopy(item)

    def call(self, method, path, body=None, query=None, away_seconds=0.0, timeout_seconds=0.0):
        query = query or {}
        kind, _, name = path.partition(f"/namespaces/{self.namespace}/")[2].partition("/")
        verb = "list" if method == "GET" and not name else VERBS[method]
        if f"{verb} {kind}" in self.denied:
            raise ClusterError(403, f'{kind} is forbidden: User "ann" cannot {verb} resource "{kind}" in API group ""')
        if f"grant {kind}" in self.denied and verb == "create":
            raise ClusterError(
                403, 'user "ann" is attempting to grant RBAC permissions not currently held:\n{Verbs:...'
            )
        if verb == "list":
            found = [(key, item) for key, item in self.objects.items() if key[0] == kind and _matches(item, query)]
            items = [_as_read(key, item) for key, item in found]
            return {"metadata": {"resourceVersion": "1"}, "items": items}
        key = kind, name or body["metadata"]["name"]
        if verb == "create" and not self.exists:
            raise ClusterError(404, f'namespaces "{self.namespace}" not found')
        if verb == "create" and key in self.objects:
            raise ClusterError(409, f"{key} already exists")
        if verb != "create" and key not in self.objects:
            raise ClusterError(404, f"{key} not found")
        if verb == "get":
            return _as_read(key, self.objects[key])
        # As of the real server: options of a deletion come from its body, and from the query only without a body.
        options = body if verb == "delete" and body else query
        if "dryRun" not in options:
            self.changes.append(f"{verb} {kind}/{key[1]}")
            if verb == "delete":
                del self.objects[key]
            else:
                self.objects[key] = copy.deepcopy(body)
        return {}


def _as_read(key, item):
    return {**copy.deepcopy(item), "metadata": {**item["metadata"], "uid": "/".join(key)}}


def _matches(item, query):
    selector = dict(pair.split("=") for pair in query["labelSelector"].split(","))
    return selector.items() <= item["metadata"].get("labels", {}).items()
