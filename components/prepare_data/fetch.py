"""Makes a source available as a local file or folder."""

import re
import shutil
import string
import urllib.request
from base64 import b64encode
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from kfp_distributed.storage.credentials import credentials_from_environment
from kfp_distributed.storage.errors import KeyNotFound, StorageError
from kfp_distributed.storage.s3 import S3Store
from kfp_distributed.storage.uri import parse_uri

# Seconds without data after which a request to an HTTP server fails. A slow download may take longer.
_TIMEOUT = 60
# Seconds without a response after which an object store's address is reported as wrong. After the first response,
# failed requests are retried for as long as in other steps.
_ANSWER_SECONDS = 10.0

# User and password, also if the password has a "/", "?" or "#" that is not percent-encoded. Then no host or
# no port precedes this character.
_USER = re.compile(r"(?<=://)(?:[^/?#]*@(?:[/?#].*@)?|[^/?#@\[]*:(?!\d*(?:[/?#]|$)).*@)")


def without_secrets(source: str) -> str:
    """Return a source without the user and query of a URL, which may hold secrets."""
    return re.sub(r"[?#].*", "", _USER.sub("", source, count=1)) if "://" in source else source


def local_copy(source: str, scratch: Path) -> Path:
    """Return the path of a source's file or folder, and download it first if it is remote.

    Args:
        source: A path, file://, http(s)://, s3:// or minio:// address.
        scratch: Empty folder for downloads.

    Raises:
        ValueError: The file or object does not exist, or the address is invalid.
        OSError: The download failed.
    """
    try:
        if re.match("(?i)https?://", source):
            request = _request(source)
            if name := Path(urlsplit(source).path).name:
                return _download(source, request, scratch / name)
            raise ValueError(f"source {without_secrets(source)} has no file name: give the address of a file")
        location = parse_uri(source)
        path = Path(location.key)
        if location.scheme == "s3":
            path = scratch / path.name
            print(f"downloading {without_secrets(source)}", flush=True)
            _download_objects(source, path)
    except (OSError, HTTPException, StorageError) as error:
        # The text of an HTTPException may contain the full URL with its signature.
        reason = error if isinstance(error, (OSError, StorageError)) else type(error).__name__
        raise OSError(f"source {without_secrets(source)} cannot be downloaded: {reason}") from None
    if not path.exists():
        raise ValueError(f"source {without_secrets(source)} does not exist: correct the path or address")
    return path


def _download_objects(source: str, path: Path) -> None:
    """Download an object, or all objects below a prefix into a folder. Create nothing if there are none.

    Raises:
        ValueError: There are no credentials.
        StorageError: The store cannot be read, or a key leads out of the folder.
    """
    store = S3Store(source, credentials_from_environment(uri=source))
    store.await_answer(_ANSWER_SECONDS)
    if store.root:
        with suppress(KeyNotFound):
            store.download("", path)
            return
    if not store.download_folder(path):
        path.rmdir()


def _download(source: str, request: urllib.request.Request, path: Path) -> Path:
    opener = urllib.request.build_opener(_Redirects)
    with opener.open(request, timeout=_TIMEOUT) as response, path.open("wb") as file:
        size = response.headers["Content-Length"]
        print(f"downloading {without_secrets(source)}, {size} bytes", flush=True)
        shutil.copyfileobj(response, file)
        if size and file.tell() != int(size):
            raise OSError(f"the connection broke after {file.tell()} of {size} bytes")
    return path


def _request(source: str) -> urllib.request.Request:
    """Return the request for an address. Its user and password become a header of HTTP Basic authentication.

    Raises:
        ValueError: The password has a character that ends the host in an address.
    """
    url = urlsplit(source)
    user, _, host = url.netloc.rpartition("@")
    is_host = re.fullmatch(r"(?:\[[^\]]*\]|[^:]+)(?::\d*)?", host)
    if not is_host and "@" in source.partition("://")[2].removeprefix(url.netloc):
        raise ValueError(
            "source has a user or password with a character that ends the host: write it percent-encoded, such as %2F "
            "for /, %3F for ? and %23 for #"
        )
    request = urllib.request.Request(quote(urlunsplit(url._replace(netloc=host)), string.punctuation))
    if user:
        name, _, password = map(unquote, user.partition(":"))
        token = b64encode(f"{name}:{password}".encode()).decode()
        # A header that urllib does not send to the target of a redirect.
        request.add_unredirected_header("Authorization", f"Basic {token}")
    return request


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Sends user and password also to the target of a redirect, if it is on the same host."""

    def redirect_request(self, req: urllib.request.Request, *args: Any, **others: Any) -> urllib.request.Request | None:  # noqa: ANN401
        target = super().redirect_request(req, *args, **others)
        authorization = req.get_header("Authorization")
        if target and authorization and may_know_password(req.full_url, target.full_url):
            target.add_unredirected_header("Authorization", authorization)
        return target


def may_know_password(url: str, target: str) -> bool:
    """Return whether the target of a redirect may get the password that was sent to an address.

    It may if it has the same host and port, and does not leave HTTPS. HTTPS is allowed instead of HTTP.
    """
    (scheme, host), (target_scheme, target_host) = map(_host, (url, target))
    return host == target_host and target_scheme in (scheme, "https")


def _host(url: str) -> tuple[str, str]:
    """Return the scheme and the host of an address, with the port unless it is the scheme's own."""
    scheme, host, *_ = urlsplit(url)
    return scheme, host.lower().removesuffix(":443" if scheme == "https" else ":80")
