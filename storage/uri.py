"""Parse and join the addresses of stored objects."""

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True)
class Location:
    """An address in an object store or in the local file system.

    Attributes:
        scheme: "s3", or "file" for a local path.
        bucket: The bucket; empty for a local path.
        key: The key or key prefix in the bucket without leading and trailing slashes, or the local path.
    """

    scheme: Literal["s3", "file"]
    bucket: str
    key: str


def parse_uri(uri: str) -> Location:
    """Parse an address.

    Args:
        uri: s3://bucket/key or minio://bucket/key (both mean an S3 object store), file:///path, or a plain path.
            In the first two, a "?" ends the key: Kubeflow Pipelines appends a store's settings there.

    Raises:
        ValueError: The scheme is not supported, the bucket is missing, the address is empty, or it has a user name, a
            password or a port.
    """
    scheme, separator, path = uri.partition("://")
    scheme = scheme.lower()
    if uri and not separator:
        return Location("file", "", uri)
    if scheme == "file" and path.startswith("/"):
        return Location("file", "", unquote(path))
    bucket, _, key = path.partition("?")[0].partition("/")
    # The errors must not show a password, which may have a slash, or a signature.
    host = bucket.rpartition("@")[2].partition(":")[0]
    if scheme not in ("s3", "minio") or not bucket:
        raise ValueError(
            f"{scheme + separator + host!r} is not a storage address: "
            "use s3://bucket/key, minio://bucket/key, file:///path or a local path"
        )
    if host != bucket:
        raise ValueError(
            f"the {scheme}:// address has a user name, a password or a port: remove them, and set AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL"
        )
    return Location("s3", bucket, key.strip("/"))


def is_minio(uri: str) -> bool:
    """Return whether an address is one of the store of Kubeflow Pipelines, minio://bucket/key, which AWS never has."""
    return uri.lower().startswith("minio://")


def join_uri(uri: str, *parts: str) -> str:
    """Append parts to an address or a path, separated by one slash: s3://b/a/ and c give s3://b/a/c."""
    is_bucket = "://" in uri and not uri.lower().startswith("file:")
    base, question_mark, settings = uri.partition("?") if is_bucket else (uri, "", "")
    path = "/".join([base.rstrip("/"), *(part.strip("/") for part in parts if part.strip("/"))])
    return path + question_mark + settings


def uri_beside(uri: str, *parts: str) -> str:
    """Return an address beside another one: s3://b/run/model and data give s3://b/run/data.

    Settings of the store after a "?" stay.
    """
    parent = re.sub(r"/[^/?]*/?(?=\?|$)", "", uri, count=1)
    return join_uri(parent, *parts)


def parse_endpoint(url: str) -> tuple[str, bool]:
    """Parse the URL of an endpoint.

    Returns:
        "host:port", and whether to use TLS (for https, and for a URL without a scheme).

    Raises:
        ValueError: The URL has another form.
    """
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
    except ValueError:  # Its message may have the password.
        parts = urlsplit("")
    host = parts.netloc.rpartition("@")[2]
    if parts.scheme not in ("http", "https") or not host or parts.path.strip("/") or parts.query:
        # The error must not show a user name or a password.
        redacted = url.rpartition("@")[2]
        raise ValueError(f"the object store's endpoint {redacted!r} must be http(s)://HOST:PORT")
    return host, parts.scheme == "https"
