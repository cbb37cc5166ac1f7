"""Reads the facts for `cluster_checks` from a cluster.

It only reads and sends access reviews. Nothing is created, and no key is stored or printed.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from kubernetes.config import list_kube_config_contexts

from kfp_distributed.cli.cluster_checks.checks import (
    Check,
    Login,
    Permission,
    Question,
    Refusal,
    judge_image,
    judge_login,
    judge_namespace,
    judge_permissions,
)
from kfp_distributed.cli.cluster_checks.library_checks import judge_libraries
from kfp_distributed.cli.cluster_checks.operator_checks import (
    Kinds,
    choose_kinds,
    judge_kinds,
    judge_kserve,
    judge_limits,
    judge_operators,
    kinds_of,
)
from kfp_distributed.cli.cluster_checks.step_buckets import bucket_of, judge_address, judge_models
from kfp_distributed.cli.cluster_checks.store_checks import BucketAnswer, judge_bucket, judge_store
from kfp_distributed.cli.pipeline_store import StoreNotReached, find_store, reach_store, store_credentials
from kfp_distributed.cluster_api.access import is_allowed
from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.cluster_api.configuration import OWN_NAMESPACE
from kfp_distributed.cluster_api.kubernetes_internals import configured_users
from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.cluster_api.reader import reader
from kfp_distributed.components.deploy_model.inference_service import GROUP, PLURAL, VERSION
from kfp_distributed.components.deploy_model.service_checks import PERMISSIONS
from kfp_distributed.components.train.describe.manifests.train_job import TRAIN_JOB
from kfp_distributed.components.train.run.runners.kubernetes.create.choose_operator import (
    Offer,
    own_permissions,
    trainer_offer,
)
from kfp_distributed.components.train.run.runners.kubernetes.create.preflight import needed_permissions, served_kinds
from kfp_distributed.library.archive import library_name
from kfp_distributed.library.content import content_hash, read_library
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.kubeflow.kfp_store import StoreReference
from kfp_distributed.storage.opener import open_store

T = TypeVar("T")


def survey(api: ClusterApi, question: Question) -> Iterator[Check]:
    """Check a cluster; yield the result of each check as soon as it is known.

    Raises:
        ClusterError: The API server stopped answering.
    """
    try:
        version = api.call("GET", "/version", away_seconds=3)["gitVersion"]
        groups = ("batch/v1", "kubeflow.org/v1", "kubeflow.org/v2beta1")
        served = {group: served_kinds(api, *group.split("/")) for group in groups}
        trainer = trainer_offer(api)
    except ClusterError as error:
        if error.status in (401, 403):
            yield judge_login(_login(), str(error))
        else:
            yield Check("cluster", "failed", str(error), "run kubectl cluster-info with the same KUBECONFIG")
        return
    yield Check("cluster", "ok", f"Kubernetes {version}, namespace {question.namespace}")
    path = f"/api/v1/namespaces/{question.namespace}"
    namespace, account = (
        _unless_refused(partial(api.read, path)),
        _unless_refused(partial(api.read, f"{path}/serviceaccounts/{question.account or 'default'}")),
    )
    yield from judge_namespace(question, namespace, account)
    kinds = kinds_of(served)
    yield from judge_kinds(question, kinds, trainer)
    kinds, checks = choose_kinds(question, kinds, trainer, _refused_kinds(api, question, kinds, trainer))
    yield from checks
    yield from judge_limits(question, kinds)
    has_trainer = trainer.is_usable and question.operator == "auto"
    deployments = _items(api, "/apis/apps/v1/deployments")
    yield from judge_operators(question, kinds, deployments, has_trainer=has_trainer)

    read = reader(api)
    uri, store = find_store(read, question.namespace, question.bucket)
    used = kinds.values()
    needed = [Permission(*entry) for kind in used for entry in needed_permissions(kind, claims=question.claims)]
    if question.volumes:
        needed.append(Permission("get", "", "persistentvolumeclaims"))
    if isinstance(store, StoreReference):
        needed.append(Permission("get", "", "secrets", store.secret))
    user, refused = _user(api), _refused(api, question, list(dict.fromkeys(needed)))
    yield judge_permissions(question, user, refused)
    yield from _deployment(api, question, user)
    yield from _libraries(api, question)
    yield from _object_store(api, question, uri, store)
    yield judge_image(question, _items(api, "/api/v1/nodes"))


def _refused_kinds(api: ClusterApi, question: Question, kinds: Kinds, trainer: Offer) -> list[Permission] | Refusal:
    """Return the permissions that decide on an operator and are missing; none if there is nothing to choose."""
    if not trainer.is_usable or question.operator != "auto":
        return []
    asked = [kind for name, kind in kinds.items() if name != "Job" and question.chosen in (None, name)]
    needed = [Permission(*entry) for kind in (*asked, TRAIN_JOB) for entry in own_permissions(kind)]
    return _refused(api, question, needed)


def _deployment(api: ClusterApi, question: Question, user: str) -> Iterator[Check]:
    group = api.read(f"/apis/{GROUP}") or {"versions": []}
    versions = [entry["version"] for entry in group["versions"]]
    served = [version for version in versions if PLURAL in served_kinds(api, GROUP, version)]
    yield judge_kserve(question, served)
    if VERSION in served:
        refused = _refused(api, question, [Permission(*entry) for entry in PERMISSIONS])
        yield judge_permissions(question, user, refused, "deploy_model")


def _libraries(api: ClusterApi, question: Question) -> Iterator[Check]:
    if question.libraries:
        names = {library.name for library in question.libraries}
        path = f"/api/v1/namespaces/{question.namespace}/configmaps"
        config_maps = {name: _unless_refused(partial(api.read, f"{path}/{name}")) for name in names}
        yield from judge_libraries(question, config_maps, library_name(content_hash(read_library())))


def _object_store(api: ClusterApi, question: Question, uri: str, store: StoreReference | Refusal) -> Iterator[Check]:
    read = reader(api)
    fields, answer = _ask_store(api, question, uri, store)
    yield from judge_store(store, fields)
    yield judge_bucket(question, uri, store, answer)
    # A store that is away is asked for seconds.
    away = {question.endpoint or _address(store)} if answer and not answer.reached else set()
    for step, parameter, named in question.buckets:
        if not named:
            yield judge_models(step, uri, store)
        elif not bucket_of(named):
            yield judge_address(step, named)
        elif bucket_of(named) != bucket_of(uri):
            check, (_, its_store) = f"{parameter} of {step}", find_store(read, question.namespace, named)
            if (question.endpoint or _address(its_store)) in away:
                fix = f"see the check of the first bucket there, then repeat: {question.command}"
                yield Check(check, "warning", f"{named} was not checked, because its store is not reached", fix)
                continue
            _, answer = _ask_store(api, question, named, its_store)
            if answer and not answer.reached:
                away.add(question.endpoint or _address(its_store))
            yield judge_bucket(question, named, its_store, answer, check)


def _address(store: StoreReference | Refusal) -> tuple[str, bool] | None:
    return (store.endpoint, store.secure) if isinstance(store, StoreReference) else None


def _ask_store(
    api: ClusterApi, question: Question, uri: str, store: StoreReference | Refusal
) -> tuple[set[str] | Refusal | None, BucketAnswer | None]:
    """Return the fields of the Secret of a store, and the answer of a bucket, as `store_checks` takes them."""
    fields: set[str] | Refusal | None = None
    answer = None
    if isinstance(store, StoreReference):
        try:
            secret = reader(api)(f"/api/v1/namespaces/{store.namespace}/secrets/{store.secret}")
            fields = None if secret is None else {name for name, value in (secret.get("data") or {}).items() if value}
        except ValueError as error:
            fields = Refusal(error)
        if isinstance(fields, set) and {store.access_key_field, store.secret_key_field} <= fields:
            answer = _ask_bucket(api, question, uri, store)
    return fields, answer


def _ask_bucket(api: ClusterApi, question: Question, uri: str, store: StoreReference) -> BucketAnswer:
    """List a prefix that no bucket has, with the keys of the Secret, at the address that this machine uses."""
    try:
        with reach_store(api, store, question.endpoint) as reached:
            credentials = store_credentials(reader(api), store, reached[:2])
            try:
                open_store(uri, credentials, retry_seconds=1).list("kfp-distributed-doctor/")
                fault = ""
            except StorageError as error:
                fault = error.cause
            return BucketAnswer(True, fault, reached.is_forwarded)
    except StoreNotReached as error:
        return BucketAnswer(False, str(error))
    except ValueError as error:
        return BucketAnswer(True, str(error))


def _refused(api: ClusterApi, question: Question, needed: list[Permission]) -> list[Permission] | Refusal:
    return _unless_refused(
        lambda: [permission for permission in needed if not is_allowed(api, *permission, question.account)]
    )


def _login() -> Login:
    """Return the user of the configuration, which `connect` has read before."""
    if OWN_NAMESPACE.exists():
        return Login()
    context = list_kube_config_contexts()[1]
    return Login(context["name"], context["context"].get("user") or "", configured_users())


def _user(api: ClusterApi) -> str:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = api.call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    except ClusterError as error:
        # Kubernetes before 1.28 does not have this review.
        if error.status in (403, 404):
            return ""
        raise
    return str(answer["status"]["userInfo"]["username"])


def _items(api: ClusterApi, path: str) -> list[Object] | Refusal:
    return _unless_refused(lambda: api.list_objects(path).items)


def _unless_refused(request: Callable[[], T]) -> T | Refusal:
    """Return the answer to a request, or why it was refused. Other errors are raised: they are no facts about it."""
    try:
        return request()
    except ClusterError as error:
        if error.status != 403:
            raise
        return Refusal(error)
