"""Requests to HTTP servers with the user and password of an address."""

import re
import string
import urllib.request
from base64 import b64encode
from http.client import HTTPResponse
from typing import Any, cast
from urllib.parse import quote, unquote, urlsplit, urlunsplit

# Seconds without data after which a request to an HTTP server fails. A slow download may take longer.
_TIMEOUT = 60


def open_url(source: str) -> HTTPResponse:
    """Send a GET request for an address, and return the response.

    Its user and password are sent with HTTP Basic authentication.

    Raises:
        ValueError: The password has a character that ends the host in an address.
        OSError: The server does not answer, or answers with an error.
        HTTPException: The address or the response is not valid.
    """
    opener = urllib.request.build_opener(_Redirects)
    return cast(HTTPResponse, opener.open(request_for(source), timeout=_TIMEOUT))


def request_for(source: str) -> urllib.request.Request:
    """Return the request for an address. Its user and password become a header of HTTP Basic authentication.

    Raises:
        ValueError: The password has a character that ends the host in an address.
    """
    url = urlsplit(source)
    user, _, host = url.netloc.rpartition("@")
    is_host = re.fullmatch(r"(?:\[[^\]]*\]|[^:]+)(?::\d*)?", host)
    # After a user, an "@" behind the host may be the end of the password, whose "/" ended the host.
    if (user or not is_host) and "@" in source.partition("://")[2].removeprefix(url.netloc):
        raise ValueError(
            "source has a user or password with a character that ends the host, or an @ in its path: write them "
            "percent-encoded, such as %2F for /, %3F for ?, %23 for # and %40 for @"
        )
    request = urllib.request.Request(quote(urlunsplit(url._replace(netloc=host)), string.punctuation))
    if user:
        name, _, password = map(unquote, user.partition(":"))
        token = b64encode(f"{name}:{password}".encode()).decode()
        # A header that urllib does not send to the target of a redirect.
        request.add_unredirected_header("Authorization", f"Basic {token}")
    return request


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Sends user and password also to the target of a redirect, if it is on the same host. Targets are HTTP servers."""

    def redirect_request(self, req: urllib.request.Request, *args: Any, **others: Any) -> urllib.request.Request | None:  # noqa: ANN401
        target = super().redirect_request(req, *args, **others)
        if target and target.type not in ("http", "https"):
            raise OSError(f"redirected to {target.type}://, which is not HTTP")
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
