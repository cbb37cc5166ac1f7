"""The fingerprint of a source, with real files, a real HTTP server and a real object store."""

import hashlib
import http.server
import os
import threading

import pytest

from kfp_distributed.components.fingerprint_source.fingerprint import FileState, fingerprint
from kfp_distributed.components.fingerprint_source.step import run_step
from kfp_distributed.components.prepare_data.sources.fetch import local_copy
from kfp_distributed.storage.object_stores.embedded import embedded_object_store
from kfp_distributed.storage.object_stores.s3 import S3Store
from kfp_distributed.storage.opener import open_store

pytestmark = pytest.mark.takes(2)


def counts(value):
    """Return the numbers of files and of bytes of a fingerprint."""
    return value.split()[1:]


def test_the_digits_have_a_constant_fingerprint():
    assert run_step(source="digits") == "digits"


def test_each_field_of_each_file_counts():
    states = [FileState("a", 1, "e", "t"), FileState("b", 2, "f", "u")]
    changed = [
        [FileState("c", 1, "e", "t"), states[1]],
        [FileState("a", 3, "e", "t"), states[1]],
        [FileState("a", 1, "g", "t"), states[1]],
        [FileState("a", 1, "e", "v"), states[1]],
        states[:1],
        [],
    ]
    values = [fingerprint(states), *map(fingerprint, changed)]
    assert len(set(values)) == len(values)
    assert fingerprint(states[::-1]) == values[0]
    text = b'[["a", 1, "e", "t"], ["b", 2, "f", "u"]]'
    assert values[0] == f"sha256:{hashlib.sha256(text).hexdigest()} files=2 bytes=3"
    assert counts(fingerprint([FileState("a", -1, "e", "")])) == ["files=1", "bytes=unknown"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data" / "class").mkdir(parents=True)
    for name in ("a.csv", "class/1.png"):
        (tmp_path / "data" / name).write_text("12")
    return tmp_path / "data"


def rewrite(file):
    """Change the content and the time of a file, but not its size."""
    file.write_text("34")
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


@pytest.mark.parametrize(
    ("change", "after"),
    [
        (lambda folder: rewrite(folder / "a.csv"), ["files=2", "bytes=4"]),
        (lambda folder: rewrite(folder / "class" / "1.png"), ["files=2", "bytes=4"]),
        (lambda folder: (folder / "class" / "2.png").write_text("5"), ["files=3", "bytes=5"]),
        (lambda folder: (folder / "a.csv").unlink(), ["files=1", "bytes=2"]),
        (lambda folder: (folder / "a.csv").rename(folder / "b.csv"), ["files=2", "bytes=4"]),
    ],
    ids=["same size", "in a class", "added", "removed", "renamed"],
)
def test_a_changed_local_folder(folder, change, after):
    before = run_step(source=str(folder))
    assert run_step(source=folder.as_uri()) == before
    assert counts(before) == ["files=2", "bytes=4"]
    change(folder)
    changed = run_step(source=str(folder))
    assert (changed != before, counts(changed)) == (True, after)


def test_a_local_file_in_the_working_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    before = run_step(source="a.csv")
    assert before == run_step(source=str(folder / "a.csv"))
    (folder / "b.csv").write_text("5")
    assert run_step(source="a.csv") == before
    rewrite(folder / "a.csv")
    assert run_step(source="a.csv") != before


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with embedded_object_store(tmp_path_factory.mktemp("objects")) as running:
        yield running


@pytest.fixture
def objects(server, monkeypatch, request):
    """The store of a bucket of the test."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    store = open_store(f"s3://data-{abs(hash(request.node.name))}")
    store.make_bucket()
    for key in ("a.csv", "folder/b.csv", "folder/deep/c.csv"):
        store.write(key, b"12")
    return store


def test_changed_objects(objects):
    folder = f"{objects.uri}/folder"
    before = run_step(source=folder)
    assert counts(before) == ["files=2", "bytes=4"]
    assert run_step(source=f"{folder.replace('s3:', 'minio:')}/?endpoint=other") == before
    objects.write("a.csv", b"34")
    assert run_step(source=folder) == before
    objects.write("folder/b.csv", b"34")
    values = [before, run_step(source=folder)]
    objects.write("folder/d.csv", b"5")
    values.append(run_step(source=folder))
    objects.delete(["folder/deep/c.csv"])
    values.append(run_step(source=folder))
    assert len(set(values)) == 4
    assert list(map(counts, values[1:])) == [["files=2", "bytes=4"], ["files=3", "bytes=5"], ["files=2", "bytes=3"]]


def test_a_changed_object(objects):
    before = run_step(source=f"{objects.uri}/a.csv")
    assert counts(before) == ["files=1", "bytes=2"]
    objects.write("folder/b.csv", b"34")
    assert run_step(source=f"{objects.uri}/a.csv") == before
    objects.write("a.csv", b"34")
    assert run_step(source=f"{objects.uri}/a.csv") != before


@pytest.mark.parametrize("path", ["", "/folder/", "/a.csv"])
def test_the_objects_are_those_that_prepare_data_downloads(objects, path, tmp_path):
    copy = local_copy(objects.uri + path, tmp_path / "scratch")
    files = sorted(file.relative_to(copy).as_posix() for file in copy.rglob("*") if file.is_file())
    store = open_store(objects.uri + path)
    assert isinstance(store, S3Store)
    assert [state.key for state in store.states()] == (files or [""])
    assert all(state.etag and state.modified for state in store.states())


def test_no_content_of_an_object_is_downloaded(objects, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("content was requested")

    monkeypatch.setattr(S3Store, "read_into", refuse)
    assert counts(run_step(source=objects.uri)) == ["files=3", "bytes=6"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("s3://data-none/none.csv", r"\nOSError: source s3://data-none/none\.csv cannot be read: http://.*'data-none'"),
        ("{objects}/none", r"\nValueError: source s3://.*/none does not exist"),
        ("none.csv", r"\nValueError: source none\.csv does not exist"),
        (
            "ftp://me:s3cret@example.org/a.csv?key=s3cret",
            r"\nValueError: 'ftp://example\.org' is not a storage",
        ),
        (
            "http://127.0.0.1:1/a.csv?key=s3cret",
            r"\nOSError: source http://127\.0\.0\.1:1/a\.csv cannot be read: .*r",
        ),
        ("http://me:s3cret@127.0.0.1:1/a.csv", r"\nOSError: source http://127\.0\.0\.1:1/a\.csv cannot be read"),
        ("http://127.0.0.1:1/?key=s3cret", r"\nValueError: source http://127\.0\.0\.1:1/ has no file name"),
        ("s3://{{workflow.uid}}/a.csv", r"\nValueError: source has the placeholder"),
    ],
)
def test_a_source_that_cannot_be_read_is_named_without_secrets(objects, source, message):
    with pytest.raises(SystemExit, match=message) as caught:
        run_step(source=source.replace("{objects}", objects.uri))
    assert "s3cret" not in str(caught.value)


class Site(http.server.BaseHTTPRequestHandler):
    """Sends `headers_sent` and `content`; "moved.csv" is redirected to "a.csv". It refuses HEAD."""

    content = b""
    headers_sent: dict = {}  # noqa: RUF012

    def do_GET(self):
        if self.path.startswith("/moved.csv"):
            self.send_response(302)
            self.send_header("Location", "/a.csv?key=s3cret")
            self.send_header("ETag", "moved")
            self.end_headers()
            return
        self.send_response(200)
        for name, value in self.headers_sent.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def site():
    class Own(Site):
        pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Own) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        Own.address = f"http://127.0.0.1:{running.server_port}"
        yield Own
        running.shutdown()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"ETag": '"1"'}, {"ETag": '"2"'}),
        ({"Last-Modified": "Mon, 23 Nov 2026 10:00:00 GMT"}, {"Last-Modified": "Mon, 23 Nov 2026 10:00:01 GMT"}),
        ({"ETag": '"1"', "Content-Length": "2"}, {"ETag": '"1"', "Content-Length": "3"}),
    ],
)
def test_a_file_of_an_http_server_by_its_headers(site, capsys, first, second):
    site.content = b"123"
    site.headers_sent = first
    before = run_step(source=f"{site.address}/a.csv?key=s3cret")
    site.content = b"456"
    assert run_step(source=f"{site.address}/moved.csv?key=other") == before
    assert before.endswith(f"bytes={first.get('Content-Length', 'unknown')}")
    site.headers_sent = second
    assert run_step(source=f"{site.address}/a.csv") != before
    assert "s3cret" not in capsys.readouterr().out


def test_a_file_of_an_http_server_without_etag_and_time_is_hashed(site, capsys):
    site.content = b"123"
    before = run_step(source=f"{site.address}/a.csv?key=s3cret")
    assert run_step(source=f"{site.address}/a.csv") == before
    assert counts(before) == ["files=1", "bytes=3"]
    site.content = b"456"
    assert run_step(source=f"{site.address}/a.csv") != before
    site.headers_sent = {"Content-Length": "5"}
    with pytest.raises(SystemExit, match=r"/a\.csv cannot be read: the connection broke after 3 of 5 bytes"):
        run_step(source=f"{site.address}/a.csv")
    printed = capsys.readouterr().out
    assert f"{site.address}/a.csv reports neither ETag nor Last-Modified" in printed
    assert "s3cret" not in printed
