"""Connections and redirects of HTTP requests: where the target of a redirect may be."""

import socket
import urllib.request
from http.client import HTTPConnection, HTTPMessage, HTTPResponse, HTTPSConnection
from typing import IO, Any
from urllib.parse import unquote, urljoin, urlsplit

from kfp_distributed.components.external_services.address_scopes import AddressScope, scope_of

MAXIMUM_REDIRECTS = 5


class RefusedRedirect(OSError):
    """A server redirected to an address that is not allowed. The message has the target's host alone."""


class AllowedScopes:
    """The scopes of the addresses that one request may reach.

    The first address may have any scope, because the user has named it. A redirect may lead to the same scope or to a
    more public one: from a public address neither to a private one, nor to the machine itself, nor to a
    link-local one, where clouds have credentials.
    """

    def __init__(self) -> None:
        self._first: AddressScope | None = None

    def admit(self, host: str, address: str) -> None:
        """Accept a connection to an address.

        Raises:
            RefusedRedirect: The address is not the first one, and has a less public scope.
        """
        scope = scope_of(address)
        if self._first is None:
            self._first = scope
        elif scope > self._first:
            raise RefusedRedirect(
                f"the server redirected to {host}, which has the {_name(scope)} address {address}. Only public "
                "addresses and those of the source's own network are allowed, which is "
                f"{_name(self._first)}. If {host} is right, name its address as the source"
            )

    def admit_name(self, host: str) -> None:
        """Accept a host before it is connected to, by the addresses that its name has here.

        A name without addresses counts as public: only a proxy knows it.

        Raises:
            RefusedRedirect: See `admit`.
        """
        try:
            answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            answers = []
        addresses = [str(answer[4][0]) for answer in answers]
        if self._first is None:
            self._first = max(map(scope_of, addresses), default=AddressScope.PUBLIC)
        for address in addresses:
            self.admit(host, address)


def _name(scope: AddressScope) -> str:
    return scope.name.lower().replace("_", "-")


class _Connection(HTTPConnection):
    """A connection whose real address is checked before anything is sent.

    The address of the connection counts, not one that was looked up before: a name may have another address now.
    """

    scopes: AllowedScopes | None = None  # None if a proxy connects to the target.

    def connect(self) -> None:
        super().connect()
        if self.scopes:
            try:
                self.scopes.admit(self.host, self.sock.getpeername()[0])
            except RefusedRedirect:
                self.close()
                raise


class _SecureConnection(HTTPSConnection, _Connection):
    """The same over TLS. The handshake follows the check, because HTTPSConnection connects by the next class."""


class _HTTPHandler(urllib.request.HTTPHandler):
    def __init__(self, scopes: AllowedScopes) -> None:
        super().__init__()
        self._scopes = scopes

    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_connections(_Connection, self._scopes, req), req)


class _HTTPSHandler(urllib.request.HTTPSHandler):
    def __init__(self, scopes: AllowedScopes) -> None:
        super().__init__()
        self._scopes = scopes

    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_connections(_SecureConnection, self._scopes, req), req)


def _connections(kind: type[_Connection], scopes: AllowedScopes, request: urllib.request.Request) -> Any:  # noqa: ANN401
    """Return what creates the connection of a request. A proxy replaces the host of the request."""
    host = urlsplit(request.full_url)
    by_proxy = request.host != unquote(host.netloc)
    if by_proxy:  # The proxy looks up the name, so that only this look-up tells the scope of the first host.
        scopes.admit_name(host.hostname or "")

    def create(*arguments: Any, **settings: Any) -> _Connection:  # noqa: ANN401
        connection = kind(*arguments, **settings)
        connection.scopes = None if by_proxy else scopes
        return connection

    return create


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects that are allowed. Sends user and password on to the same host alone."""

    # urllib would report a loop earlier, in several lines.
    max_repeats = MAXIMUM_REDIRECTS

    def __init__(self, scopes: AllowedScopes) -> None:
        self._scopes, self._count = scopes, 0

    def http_error_302(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage
    ) -> HTTPResponse | None:
        location = headers.get("Location")
        if not location:  # urllib would follow the header URI instead.
            raise RefusedRedirect(
                f"the server answered HTTP status {code} without the header Location. Name the address of the file"
            )
        try:
            target = urlsplit(urljoin(req.full_url, location))
        except ValueError:  # Its text may have the password of the address.
            raise RefusedRedirect(
                "the server redirected to an address that is not valid. Name the address of the file itself"
            ) from None
        host, scheme = target.hostname or "", urlsplit(req.full_url).scheme
        self._count += 1
        if self._count > MAXIMUM_REDIRECTS:
            raise RefusedRedirect(
                f"the server redirected more than {MAXIMUM_REDIRECTS} times. Name the address of the file itself"
            )
        if target.scheme not in ("http", "https"):
            raise RefusedRedirect(
                f"the server redirected to {target.scheme}://, which is not HTTP. Only http:// and https:// are allowed"
            )
        if (scheme, target.scheme) == ("https", "http"):
            raise RefusedRedirect(
                f"the server redirected from https:// to http://{host}, where others can read and change the data. "
                "Only https:// is allowed. If this is right, name the address of the file itself"
            )
        self._scopes.admit_name(host)
        fp.close()  # urllib would read the body, whatever its size is.
        return super().http_error_302(req, fp, code, msg, headers)  # type: ignore[return-value]

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(self, req: urllib.request.Request, *args: Any, **others: Any) -> urllib.request.Request | None:  # noqa: ANN401
        target = super().redirect_request(req, *args, **others)
        authorization = req.get_header("Authorization")
        if target and authorization and may_know_password(req.full_url, target.full_url):
            target.add_unredirected_header("Authorization", authorization)
        return target


def opener() -> urllib.request.OpenerDirector:
    """Return what sends one request and follows its redirects. It opens nothing but http:// and https://."""
    scopes = AllowedScopes()
    director = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        _HTTPHandler(scopes),
        _HTTPSHandler(scopes),
        _Redirects(scopes),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.UnknownHandler(),
    ):
        director.add_handler(handler)
    return director


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
