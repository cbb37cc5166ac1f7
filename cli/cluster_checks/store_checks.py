"""Checks whether the address of the object store is known, and whether its keys work. Pure."""

import shlex
from collections.abc import Collection
from typing import NamedTuple

from kfp_distributed.cli.cluster_checks.checks import Check, Question, Refusal
from kfp_distributed.storage.kubeflow.kfp_store import WHAT_TO_SET, StoreReference
from kfp_distributed.storage.object_stores.buckets import creation_command, port_forward
from kfp_distributed.storage.uri import parse_uri


class BucketAnswer(NamedTuple):
    """Answer of a bucket.

    Attributes:
        reached: Whether its server answered.
        error: Why the server refused, or why it was not reached; "" if all is well.
        is_forwarded: Whether it was reached through the API server.
    """

    reached: bool
    error: str = ""
    is_forwarded: bool = False


def judge_store(store: StoreReference | Refusal, fields: Collection[str] | Refusal | None) -> list[Check]:
    """Return the checks of the object store's address and of its Secret.

    Args:
        store: The object store.
        fields: Fields of its Secret that are not empty; None if there is no Secret.
    """
    if isinstance(store, Refusal):
        return [Check("object store", "failed", str(store), f"in the pipeline or here, {WHAT_TO_SET}")]
    checks = [Check("object store", "ok", _url(store.endpoint, store.secure))]
    secret, needed = f"{store.namespace}/{store.secret}", (store.access_key_field, store.secret_key_field)
    options = f"{shlex.quote(store.secret)} --namespace {store.namespace}"
    files = " ".join(f"--from-file {shlex.quote(field)}=FILE" for field in needed)
    command = f"kubectl create secret generic {options} {files}"
    replacement = f"kubectl delete secret {options} && {command}"
    if isinstance(fields, Refusal):
        fix = f"ask somebody who may read it whether it has {' and '.join(needed)}: kubectl describe secret {options}"
        checks.append(Check("secret", "warning", f"cannot read {secret}: {fields}", fix))
    elif fields is None:
        checks.append(Check("secret", "failed", f"there is no {secret} with the object store's keys", command))
    elif missing := [field for field in needed if field not in fields]:
        checks.append(Check("secret", "failed", f"{secret} has no {' and no '.join(missing)}", replacement))
    else:
        checks.append(Check("secret", "ok", f"{secret} has {' and '.join(needed)}"))
    return checks


_READ = {"source", "validation_source", "test_source", "like", "resume_from", "model_uri"}
"""Parameters of steps that name what exists. An empty bucket would not have it."""


def judge_bucket(
    question: Question, uri: str, store: StoreReference | Refusal, answer: BucketAnswer | None, name: str = "bucket"
) -> Check:
    """Return the check of a bucket.

    Args:
        question: Options of `doctor`.
        uri: URI in the bucket.
        store: The object store.
        answer: Answer of the bucket; None if its address or its keys are unknown.
        name: Name of the check. Default: that of the bucket of the pipeline root.
    """
    if answer is None or isinstance(store, Refusal):
        text = f"{uri} was not checked, because the address or the keys of the store are missing"
        return Check(name, "warning", text, f"fix the problems above, then repeat: {question.command}")
    if not answer.reached:
        text = f"{uri} cannot be reached from this machine: {answer.error}; pods may still reach it"
        variable = question.endpoint_variable
        advice = f"correct or unset {variable}" if question.endpoint else way_to_reach(store, question.command)
        return Check(name, "warning", text, advice)
    if "NoSuchBucket" in answer.error and name.partition(" of ")[0] in _READ:
        return Check(name, "failed", f"{uri} does not exist", "correct the address, or store there what the step reads")
    if "NoSuchBucket" in answer.error:
        text = f"{uri} does not exist; steps do not create buckets"
        make = creation_command(parse_uri(uri).bucket, _url(*(question.endpoint or (store.endpoint, store.secure))))
        if answer.is_forwarded:
            forward, url = port_forward(store.endpoint, store.secure)
            make = f"{forward} & sleep 3; {creation_command(parse_uri(uri).bucket, url)}; kill $!"
        fix = f"to create it, with the keys of {store.namespace}/{store.secret}: {make}"
        return Check(name, "failed", text, fix)
    if answer.error:
        # The client refuses some names itself, with a text of its own.
        is_wrong_name = "InvalidBucketName" in answer.error or "no valid name of a bucket" in answer.error
        fix = "choose another name" if is_wrong_name else "correct the Secret, or the permissions of its account"
        return Check(name, "failed", f"{uri}: {answer.error}", fix)
    way = ", by a port-forward through the API server" if answer.is_forwarded else ""
    return Check(name, "ok", f"{uri} can be listed with the keys of the Secret{way}")


def way_to_reach(store: StoreReference, command: str) -> str:
    """Return what to do about a store that this machine does not reach, neither through the API server.

    Args:
        store: The store.
        command: Command line to repeat, after AWS_ENDPOINT_URL_S3, which has precedence over AWS_ENDPOINT_URL.
    """
    return f"name an address that this machine reaches: AWS_ENDPOINT_URL_S3={_url('HOST:PORT', store.secure)} {command}"


def _url(endpoint: str, secure: bool) -> str:
    return f"http{'s' * secure}://{endpoint}"
