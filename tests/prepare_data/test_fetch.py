"""Remote sources, with a real HTTP server and a real object store."""

import base64
import functools
import http.server
import socket
import threading
import time
from typing import ClassVar

import pytest

from kfp_distributed.components.external_services import source_address
from kfp_distributed.components.external_services.http_redirects import may_know_password
from kfp_distributed.components.prepare_data.sources.fetch import local_copy
from kfp_distributed.library.address_secrets import without_secrets
from kfp_distributed.storage.object_stores.embedded import embedded_object_store
from kfp_distributed.storage.opener import open_store

pytestmark = pytest.mark.takes(7)

ROWS = "x,label\n" + "1,a\n2,b\n" * 10


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; "short.csv" ends before its length, "moved.csv" is redirected to "data.csv"."""

    def do_GET(self):
        if self.path.startswith("/short.csv"):
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"x,label\n")
        elif self.path.startswith("/moved.csv"):
            self.send_response(302)
            self.send_header("Location", "/data.csv?signature=s3cret")
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    for name in ("data.csv", "größe 1.csv"):
        (folder / name).write_text(ROWS)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_file_is_downloaded_and_its_size_is_logged(site, run, capsys):
    manifests = run(f"{site}/data.csv?signature=s3cret", shards=1)
    assert (manifests["train"].rows, manifests["train"].source) == (16, f"{site}/data.csv")
    printed = capsys.readouterr().out
    assert f"downloading {site}/data.csv, 88 bytes" in printed
    assert "s3cret" not in printed


def test_the_scheme_of_an_address_is_case_insensitive(site, tmp_path):
    assert local_copy(f"{site}/data.csv".replace("http", "HTTP"), tmp_path).read_text() == ROWS


def test_an_address_may_have_spaces_and_non_ascii_letters(site, tmp_path):
    assert local_copy(f"{site}/größe 1.csv", tmp_path).read_text() == ROWS
    assert local_copy(f"{site}/gr%C3%B6%C3%9Fe%201.csv", tmp_path).read_text() == ROWS


def test_a_redirect_is_followed(site, tmp_path):
    assert local_copy(f"{site}/moved.csv", tmp_path).read_text() == ROWS


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("/none.csv?signature=s3cret", OSError, "/none.csv cannot be downloaded: HTTP Error 404"),
        ("a/x.csv?signature=s3cret", OSError, "/x.csv cannot be downloaded: InvalidURL"),
        (
            "/short.csv?signature=s3cret",
            OSError,
            "the connection broke after 8 of 1000 bytes",
        ),
        ("/?signature=s3cret", ValueError, "source http://.*/ has no file name"),
    ],
)
def test_a_failed_download_reports_the_cause_without_secrets(site, run, tmp_path, path, error, message):
    with pytest.raises(error, match=message) as caught:
        run(site + path)
    assert "s3cret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


class PrivateHandler(Handler):
    """Notes the Authorization header of each request, and wants one for private.csv.

    "away.csv" is redirected to data.csv of the server `other`, "again.csv" to private.csv of this server, with its
    default name.
    """

    other = ""
    seen: ClassVar[list] = []

    def do_GET(self):
        authorization = self.headers["Authorization"]
        self.seen.append((self.headers["Host"], self.path, authorization))
        target = {"/away.csv": f"{self.other}/data.csv", "/again.csv": "/private.csv"}.get(self.path)
        if target:
            self.send_response(302)
            self.send_header("Location", target)
            self.end_headers()
        elif self.path == "/private.csv" and authorization != basic("me", "s3cret/@:ö"):
            self.send_error(401)
        else:
            self.path = "/data.csv"
            super().do_GET()


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture
def private_site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("private")
    (folder / "data.csv").write_text(ROWS)
    PrivateHandler.seen.clear()
    with (
        http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(PrivateHandler, directory=folder)
        ) as server,
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(PrivateHandler, directory=folder)) as other,
    ):
        PrivateHandler.other = f"http://127.0.0.1:{other.server_port}"
        for one in (server, other):
            threading.Thread(target=one.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        for one in (server, other):
            one.shutdown()


USER, SENT = "me:s3cret%2F%40:%C3%B6", basic("me", "s3cret/@:ö")


def test_user_and_password_are_sent_and_not_shown(private_site, run, tmp_path, capsys):
    manifests = run(f"http://{USER}@{private_site}/private.csv?key=s3cret", shards=1)
    assert manifests["train"].source == f"http://{private_site}/private.csv"
    assert PrivateHandler.seen == [(private_site, "/private.csv?key=s3cret", SENT)]
    texts = [capsys.readouterr().out, *(path.read_text(errors="replace") for path in tmp_path.rglob("*.*"))]
    assert len(texts) > 3
    assert f"downloading http://{private_site}/private.csv, 88 bytes" in texts[0]
    assert not any("s3cret" in text or SENT.split()[1] in text for text in texts)


def test_an_error_does_not_show_user_and_password(private_site, tmp_path):
    with pytest.raises(OSError, match="HTTP Error 401") as caught:
        local_copy(f"http://me:wr0ng@{private_site}/private.csv", tmp_path)
    assert str(caught.value).startswith(f"source http://{private_site}/private.csv cannot be downloaded: ")
    assert PrivateHandler.seen == [(private_site, "/private.csv", basic("me", "wr0ng"))]


@pytest.mark.parametrize(
    ("user", "sent"), [("token@", basic("token", "")), ("me:@", basic("me", "")), ("@", None), ("", None)]
)
def test_a_user_without_a_password(private_site, tmp_path, user, sent):
    assert local_copy(f"http://{user}{private_site}/data.csv", tmp_path).read_text() == ROWS
    assert PrivateHandler.seen == [(private_site, "/data.csv", sent)]


def test_a_redirect_keeps_the_user_on_the_same_host_alone(private_site, tmp_path):
    local_copy(f"http://{USER}@{private_site}/again.csv", tmp_path)
    local_copy(f"http://{USER}@{private_site}/away.csv", tmp_path)
    other = PrivateHandler.other.removeprefix("http://")
    assert PrivateHandler.seen == [
        (private_site, "/again.csv", SENT),
        (private_site, "/private.csv", SENT),
        (private_site, "/away.csv", SENT),
        (other, "/data.csv", None),
    ]


@pytest.mark.parametrize(
    ("url", "target", "is_same"),
    [
        ("http://a/x", "http://A:80/y", True),
        ("https://a:443/x", "https://a/y", True),
        ("http://a/x", "https://a/y", True),
        ("https://a/x", "http://a/y", False),
        ("http://a/x", "http://a:81/y", False),
        ("http://a/x", "http://a.b/y", False),
        ("http://a/x", "http://a:port/y", False),
    ],
)
def test_the_user_is_for_the_same_host_and_not_for_less_security(url, target, is_same):
    assert may_know_password(url, target) is is_same


@pytest.mark.parametrize("password", ["s3/cret", "s3?cret", "s3#cret", "s3@/cret", "s3@x/cret"])
def test_a_password_that_is_not_encoded_is_not_shown(tmp_path, password):
    with pytest.raises((OSError, ValueError)) as caught:
        local_copy(f"http://me:{password}@127.0.0.1:1/data.csv", tmp_path)
    assert "s3" not in str(caught.value)
    assert "cret" not in str(caught.value)
    assert "percent-encoded" in str(caught.value)


@pytest.mark.parametrize("address", ["http://me:s3[cret]@127.0.0.1:1", "http://me:s3\u2100cret@127.0.0.1:1"])
def test_an_address_that_is_not_valid_is_not_shown(tmp_path, address):
    with pytest.raises(ValueError, match=r"source is no valid address: .* %5B for \[") as caught:
        local_copy(f"{address}/data.csv", tmp_path)
    assert "s3" not in str(caught.value)
    assert "cret" not in str(caught.value)


def test_an_unreachable_server_and_a_user_in_the_address(tmp_path):
    with pytest.raises(OSError, match=r"source http://127\.0\.0\.1:1/data\.csv cannot be downloaded: .*refused"):
        local_copy("http://127.0.0.1:1/data.csv", tmp_path)
    with pytest.raises(OSError, match=r"source http://127\.0\.0\.1:1/data\.csv cannot be downloaded") as caught:
        local_copy("http://me:s3cret@127.0.0.1:1/data.csv", tmp_path)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("digits", "digits"),
        ("a?b/c:d.csv", "a?b/c:d.csv"),
        ("s3://bucket/data.csv", "s3://bucket/data.csv"),
        ("minio://bucket/data?endpoint=x", "minio://bucket/data"),
        ("s3://bucket/a#b.csv?endpoint=x", "s3://bucket/a#b.csv"),
        ("https://example.org:81/@a/b:c@d.csv", "https://example.org:81/@a/b:c@d.csv"),
        ("http://[::1]:81/a@b.csv", "http://[::1]:81/a@b.csv"),
        ("file:///a//b@c.csv", "file:///a//b@c.csv"),
        ("https://me:secret@example.org:81/data.csv?signature=secret#x", "https://example.org:81/data.csv"),
    ],
)
def test_secrets_are_removed_from_a_source(source, expected):
    assert without_secrets(source) == expected


def set_store(monkeypatch, url):
    values = {"AWS_ENDPOINT_URL_S3": url, "AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "s3cret"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def test_files_and_folders_of_an_object_store(tmp_path, run, monkeypatch):
    with embedded_object_store(tmp_path / "store") as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        store = open_store("s3://data")
        store.make_bucket()
        store.write("one.csv", ROWS.encode())
        store.write("many/a.csv", ROWS.encode())
        store.write("many/b.csv", ROWS.encode())
        assert run("s3://data/one.csv", "one", shards=1)["train"].rows == 16
        store.write("many/_c.CSV", ROWS.encode())
        store.write("many/_SUCCESS", b"")
        assert run("s3://data/many/", "many", shards=1)["train"].rows == 48
        open_store("s3://rows").make_bucket()
        open_store("s3://rows").write("a.csv", ROWS.encode())
        assert run("s3://rows", "bucket", shards=1)["train"].rows == 16
        with pytest.raises(ValueError, match="s3://data/none does not exist"):
            run("s3://data/none", "none")
        with pytest.raises(OSError, match=r"http://.*, bucket 'dota', key 'one\.csv'"):
            run("s3://dota/one.csv", "none")
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint.replace("http://", "https://"))
        with pytest.raises(OSError, match=r"https://.*AWS_ENDPOINT_URL"):
            run("s3://data/one.csv", "none")
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-s3cret")
        with pytest.raises(
            OSError,
            match=r"source s3://data/one\.csv cannot be downloaded: http://.*'one\.csv'.*AWS_ACCESS_KEY_ID",
        ) as caught:
            run("s3://data/one.csv", "none")
        assert "s3cret" not in str(caught.value)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        with pytest.raises(OSError, match="AWS_ACCESS_KEY_ID"):
            run("s3://data/one.csv", "none")
    assert not (tmp_path / "none").exists()


@pytest.fixture
def silent_host():
    """Address of a server that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("host", "cause"),
    [
        ("127.0.0.1:1", "Connection refused"),
        ("no-such-host.invalid", "Failed to resolve"),
        ("silent_host", "Read timed out"),
    ],
)
def test_an_unreachable_store_is_reported_soon(request, tmp_path, monkeypatch, host, cause):
    host = request.getfixturevalue(host) if host == "silent_host" else host
    set_store(monkeypatch, f"http://{host}")
    # With the retries of a download this takes more than a minute.
    monkeypatch.setattr(source_address, "ANSWER_SECONDS", 1.0)
    began = time.monotonic()
    with pytest.raises(OSError, match="AWS_ENDPOINT_URL") as caught:
        local_copy("s3://data/one.csv", tmp_path)
    assert time.monotonic() - began < 50
    assert f"source s3://data/one.csv cannot be downloaded: http://{host}, bucket 'data'," in str(caught.value)
    assert cause in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_local_addresses(file, tmp_path):
    path = file("my data.csv", ROWS)
    assert local_copy(str(path), tmp_path / "a") == local_copy(path.as_uri(), tmp_path / "b") == path
    with pytest.raises(ValueError, match=r"none\.csv does not exist"):
        local_copy(str(tmp_path / "none.csv"), tmp_path)
    with pytest.raises(ValueError, match="ftp://example") as caught:
        local_copy("ftp://me:s3cret@example.org/data.csv?signature=s3cret", tmp_path)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("source", ["", "  ", "\n"])
def test_a_blank_source_is_refused(source, tmp_path):
    with pytest.raises(ValueError, match=r"^source is '.*': give the path or address of a file or folder"):
        local_copy(source, tmp_path)


def test_the_current_folder_has_the_name_of_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert local_copy(".", tmp_path / "scratch").name == tmp_path.name
