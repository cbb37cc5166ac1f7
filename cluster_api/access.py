"""Asks the API server what an account may do."""

from kfp_distributed.cluster_api.client import ClusterApi
from kfp_distributed.cluster_api.objects import Object

_REVIEWS = "/apis/authorization.k8s.io/v1"


def is_allowed(api: ClusterApi, verb: str, group: str, resource: str, name: str = "", account: str = "") -> bool:
    """Return whether an account has a permission in the namespace of the client.

    Args:
        api: The cluster.
        verb: Verb of the permission.
        group: API group of the resource; "" for the core group.
        resource: The resource, such as "pods" or "pods/log".
        name: Name of one object. Default: "", all objects of the resource.
        account: Name of a service account of the namespace. Default: "", the account of the client.

    Raises:
        ClusterError: The account of the client may not ask for this account, or the API server does not answer.
    """
    namespace = api.namespace
    kind, spec = "SelfSubjectAccessReview", Object()
    if account:
        kind, groups = "SubjectAccessReview", ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
        spec = {
            "user": f"system:serviceaccount:{namespace}:{account}",
            "groups": [*groups, "system:authenticated"],
        }
    resource, _, part = resource.partition("/")
    spec["resourceAttributes"] = {
        "namespace": namespace,
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": part,
        "name": name,
    }
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    return bool(api.call("POST", f"{_REVIEWS}/{kind.lower()}s", review)["status"]["allowed"])
