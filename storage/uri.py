"""Where something is stored: addresses as Kubeflow Pipelines and people write them."""

from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True)
class Location:
    """A place in an object store or in the local file system.

    Attributes:
        scheme: "s3", or "file" for a local path.
        bucket: The bucket; empty for a local path.
        key: The key or key prefix in the bucket without slashes around it, or the local path.
    """

    scheme: Literal["s3", "file"]
    bucket: str
    key: str


def parse_uri(uri: str) -> Location:
    """Take an address apart.

    Args:
        uri: s3://bucket/key or minio://bucket/key (both mean an S3 object store), file:///path, or a plain path.
            What follows a "?" in the first two is no part of the key: KFP puts a store's settings there.

    Raises:
        ValueError: Another scheme, no bucket, or an empty address.
    """
    scheme, mark, rest = uri.partition("://")
    scheme = scheme.lower()
    if uri and not mark:
        return Location("file", "", uri)
    if scheme == "file" and rest.startswith("/"):
        return Location("file", "", unquote(rest))
    bucket, _, key = rest.partition("?")[0].partition("/")
    if scheme not in ("s3", "minio") or not bucket:
        # A user name, a password or a signature in it must not be repeated.
        shown = scheme + mark + bucket.rpartition("@")[2]
        raise ValueError(
            f"{shown!r} is no address: allowed are s3://bucket/key, minio://bucket/key, file:///path, a path"
        )
    return Location("s3", bucket, key.strip("/"))


def join_uri(uri: str, *parts: str) -> str:
    """Append parts to an address or a path, with one slash between them: s3://b/a/ and c make s3://b/a/c."""
    is_bucket = "://" in uri and not uri.lower().startswith("file:")
    base, mark, settings = uri.partition("?") if is_bucket else (uri, "", "")
    return "/".join([base.rstrip("/"), *(part.strip("/") for part in parts if part.strip("/"))]) + mark + settings


def parse_endpoint(url: str) -> tuple[str, bool]:
    """Take an endpoint's URL apart.

    Returns:
        "host:port" and whether it is used with TLS (https, also where no scheme is given).

    Raises:
        ValueError: It is no URL of that form.
    """
    parts = urlsplit(url if "://" in url else f"https://{url}")
    host = parts.netloc.rpartition("@")[2]
    if parts.scheme not in ("http", "https") or not host or parts.path.strip("/") or parts.query:
        # A user name or password in it must not be repeated.
        shown = url.rpartition("@")[2]
        raise ValueError(f"the object store's endpoint {shown!r} must be http(s)://HOST:PORT")
    return host, parts.scheme == "https"
