"""The largest size of a source, and downloads that fail: real HTTP and S3 servers, real files."""

import functools
import gzip
import http.server
import io
import os
import re
import resource
import shutil
import threading
import time
import zipfile

import pyarrow as pa
import pytest
from faulty_proxy import Fault, faulty_proxy

from kfp_distributed.components.external_services import request_retries
from kfp_distributed.components.prepare_data.sources import download_limit
from kfp_distributed.components.prepare_data.sources.download_limit import DownloadLimit, SourceTooLarge, parse_limit
from kfp_distributed.components.prepare_data.sources.fetch import local_copy
from kfp_distributed.components.train.run.runners.local.ports import free_ports
from kfp_distributed.storage.object_stores.embedded import embedded_object_store
from kfp_distributed.storage.opener import open_store

pytestmark = pytest.mark.takes(45)

CONTENT = b"x,label\n" + b"1,a\n2,b\n" * 500_000  # 4 MB


@pytest.mark.parametrize(
    ("text", "size"),
    [("", None), (" ", None), ("0", 0), ("1000", 1000), ("2k", 2000), ("20Gi", 20 << 30), (" 3T ", 3 * 10**12)],
)
def test_sizes(text, size):
    assert parse_limit(text) == size


@pytest.mark.parametrize("text", ["-1", "1.5Gi", "20GB", "Gi", "many", "1 Gi"])
def test_what_is_not_a_size(text):
    with pytest.raises(ValueError, match=r"KFP_DISTRIBUTED_SOURCE_LIMIT='.*' is not a size: .* such as 20Gi"):
        parse_limit(text)


def test_without_a_variable_the_disk_sets_the_limit(tmp_path):
    usage = shutil.disk_usage(tmp_path)
    reserve = min(usage.total // 20, 512 << 20)
    limit = DownloadLimit(tmp_path, {})
    assert limit.maximum == pytest.approx(max(0, usage.free - reserve), abs=1 << 30)
    with pytest.raises(SourceTooLarge, match=r"it has .* bytes: more than the .* bytes that the disk of .* has room"):
        limit.refuse_more(limit.maximum + 1, declared=True)
    assert DownloadLimit(tmp_path, {"KFP_DISTRIBUTED_SOURCE_LIMIT": "1Ki"}).maximum == 1024
    larger = DownloadLimit(tmp_path, {"KFP_DISTRIBUTED_SOURCE_LIMIT": "9000Ti"})
    with pytest.raises(SourceTooLarge, match="has room"):
        larger.refuse_more(larger.maximum + 1, declared=True)


def test_a_disk_that_other_programs_fill_ends_the_download(tmp_path, monkeypatch):
    limit = DownloadLimit(tmp_path, {})
    limit.on_bytes(100 << 20)
    monkeypatch.setattr(download_limit, "RESERVE_SHARE", 1)  # All of the disk is to stay free.
    monkeypatch.setattr(download_limit, "MAXIMUM_RESERVE", 1 << 60)
    limit.on_bytes(1 << 20)
    with pytest.raises(SourceTooLarge, match=r"has only .* bytes free"):
        limit.on_bytes(63 << 20)


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT, without a length at "/endless.csv". Notes how much of it was sent."""

    def do_GET(self):
        self.send_response(200)
        if self.path != "/endless.csv":
            self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        try:
            for _ in range(100 if self.path == "/endless.csv" else 1):
                self.wfile.write(CONTENT)
                self.server.sent += len(CONTENT)
        except ConnectionError:
            pass

    def log_message(self, *arguments):
        pass


@pytest.fixture
def site():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.sent = 0
        threading.Thread(target=server.serve_forever, daemon=True).start()
        server.url = f"http://127.0.0.1:{server.server_port}"
        yield server
        server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def serve_folder(tmp_path_factory):
    """An empty folder and its address."""
    folder = tmp_path_factory.mktemp("served")
    handler = functools.partial(QuietHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_url_with_a_larger_size_is_refused_before_a_byte_is_written(site, tmp_path, monkeypatch):
    monkeypatch.setenv("KFP_DISTRIBUTED_SOURCE_LIMIT", "1M")
    with pytest.raises(OSError, match="it has 4,000,008 bytes: more than the 1,000,000 bytes that KFP_") as caught:
        local_copy(f"{site.url}/data.csv", tmp_path / "scratch")
    assert f"source {site.url}/data.csv cannot be downloaded: " in str(caught.value)
    assert "KFP_DISTRIBUTED_SOURCE_LIMIT=1M of the step's environment allows" in str(caught.value)
    assert list((tmp_path / "scratch").iterdir()) == []


def zipped(content):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.csv.gz", gzip.compress),
        ("a.csv", gzip.compress),
        ("a.jsonl.zst", lambda content: pa.compress(content, "zstd", asbytes=True)),
        ("a.npz", zipped),
    ],
)
def test_a_compressed_file_counts_unpacked(serve_folder, tmp_path, monkeypatch, name, pack):
    folder, url = serve_folder
    (folder / name).write_bytes(pack(CONTENT + b"1"))
    assert (folder / name).stat().st_size < 100_000
    monkeypatch.setenv("KFP_DISTRIBUTED_SOURCE_LIMIT", "4000008")
    with pytest.raises(OSError, match=rf"{name} cannot be downloaded: unpacked, it has more than the 4,000,008 bytes"):
        local_copy(f"{url}/{name}", tmp_path)
    assert list(tmp_path.iterdir()) == []
    (folder / name).write_bytes(pack(CONTENT))
    assert local_copy(f"{url}/{name}", tmp_path).exists()
    (folder / name).write_bytes(pack(CONTENT + b"1"))
    monkeypatch.delenv("KFP_DISTRIBUTED_SOURCE_LIMIT")
    assert local_copy(f"{url}/{name}", tmp_path).exists()


def test_a_damaged_file_is_left_to_its_reader(serve_folder, tmp_path, monkeypatch):
    folder, url = serve_folder
    (folder / "a.csv.gz").write_bytes(gzip.compress(CONTENT)[:-100])
    monkeypatch.setenv("KFP_DISTRIBUTED_SOURCE_LIMIT", "5M")
    assert local_copy(f"{url}/a.csv.gz", tmp_path).exists()


def test_the_objects_of_a_folder_count_together(bucket, tmp_path, monkeypatch):
    store = open_store("s3://compressed")
    store.make_bucket()
    for name in ("a", "b"):
        store.write(f"packed/{name}.csv.gz", gzip.compress(CONTENT))
    monkeypatch.setenv("KFP_DISTRIBUTED_SOURCE_LIMIT", "5M")
    with pytest.raises(OSError, match="packed cannot be downloaded: unpacked, it has more than the 5,000,000 bytes"):
        local_copy("s3://compressed/packed", tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert local_copy("s3://compressed/packed/a.csv.gz", tmp_path).exists()


def test_a_url_without_a_size_is_stopped_at_the_limit(site, tmp_path, monkeypatch):
    monkeypatch.setenv("KFP_DISTRIBUTED_SOURCE_LIMIT", "6Mi")
    with pytest.raises(OSError, match="it declares no size, and the download was stopped: more than the 6,291,456"):
        local_copy(f"{site.url}/endless.csv", tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert site.sent < 100 << 20
    monkeypatch.setenv("KFP_DISTRIBUTED_SOURCE_LIMIT", "400M")
    assert local_copy(f"{site.url}/data.csv", tmp_path).read_bytes() == CONTENT


@pytest.fixture
def full_disk():
    """No file can have more than 1 MB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_nothing(site, tmp_path, full_disk):
    with pytest.raises(OSError, match=r"data\.csv cannot be downloaded: .*File too large") as caught:
        local_copy(f"{site.url}/data.csv", tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def proxied(site):
    with faulty_proxy(site.url) as proxy:
        yield proxy


def test_a_server_that_is_not_available_for_8_seconds(proxied, tmp_path, capsys):
    started, proxied.faults = time.monotonic(), [Fault("GET", times=10**6, status=503)]
    threading.Timer(8, proxied.faults.clear).start()
    assert local_copy(f"{proxied.url}/data.csv", tmp_path).read_bytes() == CONTENT
    assert time.monotonic() - started > 8
    assert (
        "the server of the source is not available (HTTP Error 503: Service Unavailable); next attempt in 0.5 s"
        in capsys.readouterr().out
    )


def test_a_server_that_stays_away(proxied, tmp_path, monkeypatch):
    monkeypatch.setattr(request_retries, "RETRY_SECONDS", 2.0)
    proxied.faults = [Fault("GET", times=10**6, status=503)]
    with pytest.raises(OSError, match=r"data\.csv cannot be downloaded: HTTP Error 503: "):
        local_copy(f"{proxied.url}/data.csv", tmp_path)
    proxied.faults = [Fault("GET", status=503), Fault("GET", times=10**6, reset=True)]
    with pytest.raises(OSError, match=r"data\.csv cannot be downloaded: "):
        local_copy(f"{proxied.url}/data.csv", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_connection_that_breaks(proxied, tmp_path, capsys):
    proxied.faults = [Fault("GET", times=3, cut_after=3 << 20)]
    assert local_copy(f"{proxied.url}/data.csv", tmp_path).read_bytes() == CONTENT
    printed = capsys.readouterr().out
    assert len(re.findall("the connection broke after .* of 4000008 bytes.*; the download starts again", printed)) == 3
    proxied.faults = [Fault("GET", times=4, cut_after=3 << 20)]
    with pytest.raises(
        OSError, match=r"cannot be downloaded: the connection broke after .* of 4000008 bytes"
    ) as caught:
        local_copy(f"{proxied.url}/data.csv", tmp_path / "b")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "b").iterdir()) == []


def test_a_server_that_restarts_during_a_download(site, tmp_path, capsys):
    """The first proxy cuts the download and stops listening. Another one has its port three seconds later."""
    is_cut, is_complete = threading.Event(), threading.Event()
    [port] = free_ports(1)

    def serve():
        with faulty_proxy(site.url, port) as first:
            first.faults = [
                Fault("GET", cut_after=1 << 20, before=is_cut.set),
                Fault("GET", times=10**6, reset=True),
            ]
            is_listening.set()
            is_cut.wait()
        time.sleep(3)  # Nothing listens at the port meanwhile.
        with faulty_proxy(site.url, port):
            is_complete.wait()

    is_listening = threading.Event()
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        is_listening.wait()
        assert local_copy(f"http://127.0.0.1:{port}/data.csv", tmp_path).read_bytes() == CONTENT
    finally:
        is_cut.set()
        is_complete.set()
        thread.join()
    assert re.search("not available .*refused.*; next attempt in", capsys.readouterr().out)


class RangeHandler(http.server.BaseHTTPRequestHandler):
    """Serves the attribute `content` of its server with its ETag, and the ranges that are asked for.

    A response ends early while `cuts` has numbers of bytes.
    """

    def do_GET(self):
        content, etag = self.server.content, f'"{hash(self.server.content)}"'
        asked = self.headers["Range"]
        self.server.asked.append(asked)
        is_part = asked and self.headers["If-Range"] == etag
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) + self.server.shift if is_part else 0
        self.send_response(206 if is_part else 200)
        if is_part:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", etag)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = None
        if self.server.cuts:
            end = start + self.server.cuts.pop(0)
            self.server.on_cut()
        self.wfile.write(content[start:end])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def ranges():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), RangeHandler) as server:
        server.content, server.asked, server.shift, server.on_cut = os.urandom(4_000_000), [], 0, lambda: None
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_broken_download_goes_on_where_it_broke(ranges, tmp_path, capsys):
    ranges.cuts = [0, 2_000_000, 1_000_000]
    assert local_copy(f"{ranges.url}/data.csv", tmp_path).read_bytes() == ranges.content
    assert ranges.asked == [None, None, "bytes=2000000-", "bytes=3000000-"]
    assert "the connection broke after 3000000 of 4000000 bytes; the download goes on there" in capsys.readouterr().out


@pytest.mark.parametrize("change", ["content", "start"])
def test_a_download_that_cannot_go_on_starts_again(ranges, tmp_path, change):
    """The file has changed, so that the server sends all of it; or the server sends another part."""

    def change_file():
        if change == "content":
            ranges.content = os.urandom(3_000_000)
        ranges.shift = -1

    ranges.cuts, ranges.on_cut = [2_000_000], change_file
    assert local_copy(f"{ranges.url}/data.csv", tmp_path).read_bytes() == ranges.content
    assert ranges.asked == [None, "bytes=2000000-", None][: 2 if change == "content" else 3]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with embedded_object_store(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
def bucket(server, monkeypatch):
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    store = open_store("s3://large")
    if not store.bucket_exists():
        store.make_bucket()
        for name in ("a.csv", "b.csv"):
            store.write(f"many/{name}", CONTENT)
    return store


@pytest.mark.parametrize(("path", "size"), [("many/a.csv", "4,000,008"), ("many", "8,000,016"), ("", "8,000,016")])
def test_objects_that_are_too_large(bucket, tmp_path, monkeypatch, path, size):
    monkeypatch.setenv("KFP_DISTRIBUTED_SOURCE_LIMIT", "3M")
    with pytest.raises(OSError, match=f"it has {size} bytes: more than the 3,000,000"):
        local_copy(f"s3://large/{path}".rstrip("/"), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["many/a.csv", "many"])
def test_a_full_disk_leaves_no_objects(bucket, tmp_path, full_disk, path):
    with pytest.raises(OSError, match="the local disk is full, free space"):
        local_copy(f"s3://large/{path}", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_object_store_that_is_not_available_for_8_seconds(server, bucket, tmp_path, monkeypatch):
    with faulty_proxy(server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
        started, proxy.faults = time.monotonic(), [Fault("GET", times=10**6, status=503)]
        threading.Timer(8, proxy.faults.clear).start()
        copy = local_copy("s3://large/many", tmp_path)
        assert {file.name: file.read_bytes() for file in copy.iterdir()} == {"a.csv": CONTENT, "b.csv": CONTENT}
        assert time.monotonic() - started > 8


def test_faults_of_an_object_store(server, bucket, tmp_path, monkeypatch):
    with faulty_proxy(server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
        proxy.faults = [Fault("GET /large/many/a.csv", times=3, status=503), Fault("many/b.csv", cut_after=1 << 20)]
        copy = local_copy("s3://large/many", tmp_path)
        assert {file.name: file.read_bytes() for file in copy.iterdir()} == {"a.csv": CONTENT, "b.csv": CONTENT}
        proxy.faults = [Fault("many/b.csv", times=9, cut_after=1 << 20)]
        with pytest.raises(OSError, match=r"many cannot be downloaded: .*the connection broke several times"):
            local_copy("s3://large/many", tmp_path / "b")
    assert list((tmp_path / "b").iterdir()) == []
