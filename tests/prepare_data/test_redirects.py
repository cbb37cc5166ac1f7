"""Redirects of HTTP servers, between real servers at several addresses of this machine."""

import http.server
import socket
import ssl
import subprocess
import threading
import urllib.error
from contextlib import contextmanager

import pytest

from kfp_distributed.components.external_services import http_redirects
from kfp_distributed.components.external_services.address_scopes import AddressScope, scope_of
from kfp_distributed.components.prepare_data.sources.fetch import local_copy

pytestmark = pytest.mark.takes(19)

ROWS = b"x,label\n1,a\n2,b\n"

SCOPES = {"127.0.0.2": AddressScope.PUBLIC, "127.0.0.3": AddressScope.PRIVATE, "127.0.0.4": AddressScope.LINK_LOCAL}


@pytest.fixture(autouse=True)
def scopes(monkeypatch):
    """Give addresses of this machine, which are all loopback, the scopes of other networks."""
    monkeypatch.setattr(
        http_redirects,
        "scope_of",
        lambda address: SCOPES[address] if address in SCOPES else scope_of(address),
    )


@contextmanager
def site(address, target="", certificate=None, header="Location"):
    """A server that redirects "/moved.csv" to `target`, "/N.csv" to "/N-1.csv", and serves the other paths."""
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            name = self.path.strip("/").removesuffix(".csv")
            location = target if name == "moved" else f"/{int(name) - 1}.csv" if name.isdigit() and name != "0" else ""
            self.send_response(302 if location else 200)
            if location:
                self.send_header(header, location)
            self.send_header("Content-Length", str(len(ROWS)))
            self.end_headers()
            self.wfile.write(ROWS)

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer((address, 0), Handler) as server:
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        scheme = "https" if certificate else "http"
        yield f"{scheme}://{address}:{server.server_port}", requests
        server.shutdown()


@pytest.mark.parametrize(
    ("first", "second", "is_allowed"),
    [
        ("127.0.0.2", "127.0.0.2", True),
        ("127.0.0.2", "127.0.0.3", False),
        ("127.0.0.2", "127.0.0.1", False),
        ("127.0.0.2", "127.0.0.4", False),
        ("127.0.0.3", "127.0.0.2", True),
        ("127.0.0.3", "127.0.0.3", True),
        ("127.0.0.3", "127.0.0.1", False),
        ("127.0.0.3", "127.0.0.4", False),
        ("127.0.0.1", "127.0.0.3", True),
        ("127.0.0.1", "127.0.0.4", False),
        ("127.0.0.4", "127.0.0.4", True),
    ],
)
def test_a_redirect_leads_to_no_less_public_address(tmp_path, first, second, is_allowed):
    with site(second) as (target, requests), site(first, f"{target}/data.csv?key=s3cret") as (source, _):
        if is_allowed:
            assert local_copy(f"{source}/moved.csv", tmp_path).read_bytes() == ROWS
            return
        with pytest.raises(OSError, match=r"moved\.csv cannot be downloaded: the server redirected to") as caught:
            local_copy(f"{source}/moved.csv", tmp_path)
        assert requests == []
        assert f"address {second}. Only public addresses and those of the source's own network" in str(caught.value)
        assert "s3cret" not in str(caught.value)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.3", "127.0.0.4"])
def test_an_internal_address_may_be_the_source(tmp_path, address):
    with site(address) as (source, _):
        assert local_copy(f"{source}/data.csv", tmp_path).read_bytes() == ROWS


@pytest.mark.parametrize("lookups", [1, 2])
def test_the_address_of_the_connection_counts(tmp_path, monkeypatch, lookups):
    """The name of the target is public when it is looked up first, and internal when it is connected to."""
    real, answers = socket.getaddrinfo, ["127.0.0.2"] * (lookups - 1) + ["127.0.0.3"] * 9

    def lookup(host, *arguments, **others):
        return real(answers.pop(0) if host == "rebind.example" else host, *arguments, **others)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    with site("127.0.0.3") as (internal, requests):
        target = internal.replace("127.0.0.3", "rebind.example")
        error = pytest.raises(OSError, match=r"redirected to rebind\.example, which has the private address")
        with site("127.0.0.2", f"{target}/data.csv") as (source, _), error:
            local_copy(f"{source}/moved.csv", tmp_path)
    assert requests == []


def test_five_redirects_are_followed_and_six_are_not(tmp_path):
    with site("127.0.0.2") as (source, requests):
        assert local_copy(f"{source}/5.csv", tmp_path).read_bytes() == ROWS
        requests.clear()
        with pytest.raises(OSError, match=r"cannot be downloaded: the server redirected more than 5 times\."):
            local_copy(f"{source}/6.csv", tmp_path)
        assert requests == ["/6.csv", "/5.csv", "/4.csv", "/3.csv", "/2.csv", "/1.csv"]
    error = pytest.raises(OSError, match=r"cannot be downloaded: the server redirected more than 5 times\.")
    with site("127.0.0.2", "/moved.csv") as (source, _), error:
        local_copy(f"{source}/moved.csv", tmp_path)


@pytest.mark.parametrize("target", ["file:///etc/passwd?k=s3cret", "ftp://127.0.0.2/a?k=s3cret", "gopher://a?s3cret"])
def test_a_redirect_to_another_scheme_is_refused(tmp_path, target):
    error = pytest.raises(OSError, match=rf"redirected to {target[:3]}.*, which is not HTTP")
    with site("127.0.0.2", target) as (source, _), error as caught:
        local_copy(f"{source}/moved.csv", tmp_path)
    assert "s3cret" not in str(caught.value)


def test_only_the_header_location_redirects(tmp_path):
    """urllib also follows the header URI, without the checks of Location."""
    error = pytest.raises(OSError, match=r"moved\.csv cannot be downloaded: .* HTTP status 302 without the header")
    with (
        site("127.0.0.2") as (target, requests),
        site("127.0.0.2", f"{target}/data.csv?key=s3cret", header="URI") as (source, _),
        error as caught,
    ):
        local_copy(f"{source}/moved.csv", tmp_path)
    assert requests == []
    assert "s3cret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["http://me:s3[cret/a.csv", "//me:s3[cret/a.csv"])
def test_a_redirect_to_an_address_that_is_not_valid(tmp_path, target):
    error = pytest.raises(OSError, match="the server redirected to an address that is not valid")
    with site("127.0.0.2", target) as (source, _), error as caught:
        local_copy(f"{source}/moved.csv", tmp_path)
    assert "s3" not in str(caught.value)


def test_nothing_but_http_can_be_opened():
    for address in ("ftp://127.0.0.2/a.csv", "file:///etc/passwd", "data:,a"):
        with pytest.raises(urllib.error.URLError, match="unknown url type"):
            http_redirects.opener().open(address)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A folder with a self-signed certificate and its key."""
    folder = tmp_path_factory.mktemp("certificate")
    names = "subjectAltName=IP:127.0.0.2,IP:127.0.0.3"
    request = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext {names}"
    output = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    subprocess.run([*request.split(), *output], check=True, capture_output=True)
    return folder


def test_a_redirect_does_not_leave_https(tmp_path, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
    with site("127.0.0.2") as (plain, requests), site("127.0.0.2", f"{plain}/a.csv", certificate) as (secure, _):
        assert local_copy(f"{secure}/data.csv", tmp_path).read_bytes() == ROWS
        with pytest.raises(OSError, match=r"redirected from https:// to http://127\.0\.0\.2, where others can"):
            local_copy(f"{secure}/moved.csv", tmp_path)
        assert requests == []
        with site("127.0.0.2", f"{secure}/data.csv") as (source, _):
            assert local_copy(f"{source}/moved.csv", tmp_path / "b").read_bytes() == ROWS
    with (
        site("127.0.0.3", "", certificate) as (internal, requests),
        site("127.0.0.2", f"{internal}/data.csv", certificate) as (secure, _),
        pytest.raises(OSError, match="private address 127"),
    ):
        local_copy(f"{secure}/moved.csv", tmp_path)
    assert requests == []


def test_behind_a_proxy_the_name_of_the_target_counts(tmp_path, monkeypatch):
    """The proxy is at an internal address, and connects itself."""

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200 if "data.csv" in self.path else 302)
            self.send_header("Location", "http://127.0.0.3/private.csv")
            self.end_headers()
            self.wfile.write(ROWS)

        def log_message(self, *arguments):
            pass

    asked: list = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
        assert local_copy("http://only.known.invalid/data.csv", tmp_path).read_bytes() == ROWS
        with pytest.raises(OSError, match=r"private address 127\.0\.0\.3"):
            local_copy("http://only.known.invalid/moved.csv", tmp_path)
        proxy.shutdown()
    assert asked == ["http://only.known.invalid/data.csv", "http://only.known.invalid/moved.csv"]
