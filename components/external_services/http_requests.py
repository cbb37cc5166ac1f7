"""Requests to HTTP servers with the user and password of an address."""

import re
import string
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from http.client import HTTPResponse
from types import MappingProxyType
from typing import cast
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from kfp_distributed.components.external_services.http_redirects import RefusedRedirect, opener
from kfp_distributed.components.external_services.request_retries import TRANSIENT_STATUS, Retries, TransientError

# Seconds without data after which a request to an HTTP server fails. A slow download may take longer.
_TIMEOUT = 60

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
"""The headers of a request that has none of its own."""


def open_url(source: str, headers: Mapping[str, str] = NO_HEADERS, retries: Retries | None = None) -> HTTPResponse:
    """Send a GET request for an address, and return the response.

    Its user and password are sent with HTTP Basic authentication. A server that answers that it cannot serve now (429,
    500, 502, 503 or 504) is asked again for about a minute. So is a server that has answered before and then refuses
    connections or has no address, as one does that restarts.

    Args:
        source: Address with the scheme http or https.
        headers: Headers of the request. Default: none.
        retries: Those of earlier requests to the server. Default: this is the first one.

    Raises:
        ValueError: The address is not valid, or its password has a character that ends the host.
        OSError: The server does not answer, answers with an error, or redirects to an address that is not allowed.
        HTTPException: The address or the response is not valid.
    """
    return (retries or Retries()).run(lambda: _open_once(source, headers))


def _open_once(source: str, headers: Mapping[str, str]) -> HTTPResponse:
    try:
        return cast(HTTPResponse, opener().open(request_for(source, headers), timeout=_TIMEOUT))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in TRANSIENT_STATUS:
            raise TransientError(str(error), is_answer=True) from None
        raise
    except OSError as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, RefusedRedirect):  # urllib wraps the errors of a connection.
            raise reason from None
        if isinstance(reason, OSError):
            raise TransientError(str(error), is_answer=False) from None
        raise


def request_for(source: str, headers: Mapping[str, str] = NO_HEADERS) -> urllib.request.Request:
    """Return the request for an address. Its user and password become a header of HTTP Basic authentication.

    Raises:
        ValueError: The address is not valid, or its password has a character that ends the host.
    """
    try:
        url = urlsplit(source)
    except ValueError:  # Its text may have the password.
        raise ValueError(
            "source is no valid address: write other characters than letters and digits of the user and password "
            "percent-encoded, such as %5B for [ and %5D for ]"
        ) from None
    user, _, host = url.netloc.rpartition("@")
    is_host = re.fullmatch(r"(?:\[[^\]]*\]|[^:]+)(?::\d*)?", host)
    # After a user, an "@" behind the host may be the end of the password, whose "/" ended the host.
    if (user or not is_host) and "@" in source.partition("://")[2].removeprefix(url.netloc):
        raise ValueError(
            "source has a user or password with a character that ends the host, or an @ in its path: write them "
            "percent-encoded, such as %2F for /, %3F for ?, %23 for # and %40 for @"
        )
    request = urllib.request.Request(
        quote(urlunsplit(url._replace(netloc=host)), string.punctuation), headers=dict(headers)
    )
    if user:
        name, _, password = map(unquote, user.partition(":"))
        token = b64encode(f"{name}:{password}".encode()).decode()
        # A header that urllib does not send to the target of a redirect.
        request.add_unredirected_header("Authorization", f"Basic {token}")
    return request
