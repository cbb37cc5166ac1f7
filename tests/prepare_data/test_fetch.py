"""Remote sources, with a real HTTP server and a real object store."""

import functools
import http.server
import socket
import threading
import time

import pytest

from kfp_distributed.components import source_address
from kfp_distributed.components.prepare_data.fetch import local_copy
from kfp_distributed.components.source_address import without_secrets
from kfp_distributed.storage.embedded import embedded_object_store
from kfp_distributed.storage.opener import open_store

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
    monkeypatch.setattr(source_address, "_ANSWER_SECONDS", 1.0)
    began = time.monotonic()
    with pytest.raises(OSError, match="AWS_ENDPOINT_URL") as caught:
        local_copy("s3://data/one.csv", tmp_path)
    assert time.monotonic() - began < 20
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
