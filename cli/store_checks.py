"""Whether the object store of the steps is known, and answers to its keys. Pure."""

import shlex
from collections.abc import Collection
from typing import NamedTuple

from kfp_distributed.cli.checks import Check, Question, Refusal
from kfp_distributed.storage.kfp_store import WHAT_TO_SET, StoreReference
from kfp_distributed.storage.uri import parse_uri


class BucketAnswer(NamedTuple):
    """How a bucket answered: whether its server did at all, and what was wrong."""

    reached: bool
    error: str = ""


def judge_store(store: StoreReference | Refusal, fields: Collection[str] | Refusal | None) -> list[Check]:
    """Whether it is known where the object store is, and its Secret has the keys.

    Args:
        store: What was found.
        fields: The fields of its Secret that are not empty; None where there is no Secret.
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
        mend = f"ask who may get it whether it has {' and '.join(needed)}: kubectl describe secret {options}"
        checks.append(Check("secret", "warning", f"cannot see whether {secret} is in order: {fields}", mend))
    elif fields is None:
        checks.append(Check("secret", "failed", f"there is no {secret} with the object store's keys", command))
    elif missing := [field for field in needed if field not in fields]:
        checks.append(Check("secret", "failed", f"{secret} has no {' and no '.join(missing)}", replacement))
    else:
        checks.append(Check("secret", "ok", f"{secret} has {' and '.join(needed)}"))
    return checks


def judge_bucket(question: Question, uri: str, store: StoreReference | Refusal, answer: BucketAnswer | None) -> Check:
    """Whether a bucket answers; None where nobody could ask, for want of an address or of keys."""
    if answer is None or isinstance(store, Refusal):
        text = f"{uri} was not asked: that takes the store's address and keys"
        return Check("bucket", "warning", text, f"mend what is above, then ask again: {question.command}")
    if not answer.reached:
        text = f"{uri} cannot be asked from here: {answer.error}; pods may reach it all the same"
        return Check("bucket", "warning", text, _forward(store, question.command))
    if "NoSuchBucket" in answer.error:
        text = f"{uri} is not there yet; the train step makes the bucket if its keys may"
        endpoint, secure = question.endpoint or (store.endpoint, store.secure)
        bucket = shlex.quote(f"s3://{parse_uri(uri).bucket}")
        make = f"aws s3 mb {bucket} --endpoint-url {_url(endpoint, secure)}"
        mend = f"to make it now, with the keys of {store.namespace}/{store.secret}: {make}"
        return Check("bucket", "warning", text, mend)
    if answer.error:
        named = "InvalidBucketName" in answer.error
        mend = "give another name" if named else "correct the Secret, or what its account may do"
        return Check("bucket", "failed", f"{uri}: {answer.error}", mend)
    return Check("bucket", "ok", f"{uri} answers to the keys of the Secret")


def _forward(store: StoreReference, command: str) -> str:
    """How a store in the cluster, such as service.namespace:9000, is asked from outside.

    The variable is the one that counts before AWS_ENDPOINT_URL. A certificate would not name localhost.
    """
    host, _, port = store.endpoint.partition(":")
    service, _, home = host.removesuffix(".cluster.local").removesuffix(".svc").partition(".")
    if store.secure or not home or "." in home:
        address = _url("HOST:PORT", store.secure)
        return f"with an address of it that answers here: AWS_ENDPOINT_URL_S3={address} {command}"
    port = port or "80"
    # A port below 1024 is for root alone.
    here = port if len(port) > 3 else f"9{port:0>3}"
    ports = port if here == port else f"{here}:{port}"
    return (
        f"kubectl port-forward --namespace {home} service/{service} {ports} & sleep 3; "
        f"AWS_ENDPOINT_URL_S3=http://localhost:{here} {command}; kill $!"
    )


def _url(endpoint: str, secure: bool) -> str:
    return f"http{'s' * secure}://{endpoint}"
