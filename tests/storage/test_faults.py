"""The S3 store behind a proxy that injects faults of the network and the server."""

import logging
import os
import socket
import threading
import time
from contextlib import ExitStack, nullcontext
from dataclasses import replace

import pytest
from faulty_proxy import Fault, faulty_proxy
from store_contract import content, entry, fill

from kfp_distributed.components.train.run.runners.local.ports import free_ports
from kfp_distributed.storage import ChecksumMismatch, KeyNotFound, StorageError, open_store
from kfp_distributed.storage.answers import has_answered
from kfp_distributed.storage.errors import StoreAway
from kfp_distributed.storage.object_stores import s3
from kfp_distributed.storage.object_stores.s3 import S3Store
from kfp_distributed.storage.uri import parse_endpoint

pytestmark = pytest.mark.takes(45)

BIG = os.urandom(20 << 20)  # Three parts.


@pytest.fixture
def new_proxy(server):
    """A proxy with a port that no earlier test has used."""
    with ExitStack() as proxies:
        started = (proxies.enter_context(faulty_proxy(server.endpoint)) for _ in range(20))
        yield next(running for running in started if not has_answered(running.url))


def methods(proxy):
    return [request.split()[0] for request in proxy.requests]


@pytest.mark.parametrize(
    "fault",
    [{"status": status} for status in (429, 500, 502, 503, 504)] + [{"reset": True}, {"lose_answer": True}],
    ids=str,
)
def test_every_method_retries_transient_errors(store, proxy, fault, tmp_path):
    proxy.faults = [Fault("PUT", times=2, **fault), *(Fault(method, **fault) for method in ("GET", "HEAD", "POST"))]
    store.write("key", b"data")
    assert store.read("key") == b"data"
    assert store.exists("key")
    store.delete(["key"])
    assert [fault.times for fault in proxy.faults] == [0, 0, 0, 0]
    assert methods(proxy) == ["PUT"] * 3 + ["GET"] * 2 + ["HEAD"] * 2 + ["POST"] * 2
    assert store.list() == []


@pytest.mark.parametrize("status", [400, 403, 404, 405])
def test_permanent_errors_are_not_retried(store, proxy, status):
    proxy.faults = [Fault("PUT", times=1, status=status)]
    with pytest.raises(StorageError, match=str(status)) as error:
        store.write("key", b"data")
    assert methods(proxy) == ["PUT"]
    assert (type(error.value), error.value.endpoint, error.value.key) == (StorageError, proxy.url, "root/key")


@pytest.mark.parametrize("fault", [{"status": 503}, {"reset": True}], ids=str)
def test_an_error_that_outlasts_the_retries_says_that_the_store_is_away(server, proxy, fault):
    host, secure = parse_endpoint(proxy.url)
    credentials = replace(server.credentials(), endpoint=host, secure=secure)
    proxy.faults = [Fault("HEAD", times=99, **fault)]
    with pytest.raises(StoreAway) as error:
        open_store("s3://bucket/root", credentials, retry_seconds=1).exists("key")
    assert (error.value.endpoint, error.value.key) == (proxy.url, "root/key")


@pytest.mark.parametrize(
    ("fault", "answered"),
    [
        *(({"status": status}, True) for status in (400, 403, 404)),
        # A gateway or a service mesh sends these for a store that it does not reach.
        *(({"status": status}, False) for status in (429, 500, 502, 503, 504)),
        ({"reset": True}, False),
    ],
    ids=str,
)
def test_every_answer_of_the_store_is_noted(server, new_proxy, fault, answered):
    host, secure = parse_endpoint(new_proxy.url)
    credentials = replace(server.credentials(), endpoint=host, secure=secure)
    new_proxy.faults = [Fault("GET", times=99, **fault)]
    assert not has_answered(new_proxy.url)
    with pytest.raises(StorageError):
        open_store("s3://bucket/root", credentials, retry_seconds=0).read("key")
    assert has_answered(new_proxy.url) is answered


def test_missing_object_is_requested_once(store, proxy):
    with pytest.raises(KeyNotFound):
        store.read("key")
    assert not store.exists("key")
    assert methods(proxy) == ["GET", "HEAD"]


@pytest.mark.parametrize("page", ["<html>NoSuchKey</html>", "<Message>NoSuchKey</Message>"])
def test_a_page_that_mentions_a_missing_key_is_no_answer_about_one(store, proxy, page):
    proxy.faults = [Fault("GET", change=lambda _: page.encode(), headers={"Content-Type": "text/html"})]
    with pytest.raises(StorageError) as error:
        store.read("key")
    assert type(error.value) is StorageError


def test_retries_end_after_retry_seconds(server, caplog):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{unused.getsockname()[1]}"
    store = open_store("s3://bucket", replace(server.credentials(), endpoint=endpoint), retry_seconds=1)
    start = time.monotonic()
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(StoreAway, match=r"check AWS_ENDPOINT_URL .*Connection refused") as error,
    ):
        store.read("key")
    assert time.monotonic() - start < 120
    assert str(error.value).startswith(f"http://{endpoint}, bucket 'bucket', key 'key': ")
    assert len(caplog.records) == 2
    assert server.secret_key not in caplog.text + repr(error.getrepr())


def test_store_waits_for_a_server_that_starts_late(server, tmp_path):
    # A port outside of the range of outgoing connections, so that none takes it in the meantime.
    (port,) = free_ports(1)
    proxies = []

    def start_proxy_later():
        time.sleep(1)  # The first requests are refused meanwhile.
        proxies.append(faulty_proxy(server.endpoint, port=port))
        proxies[0].__enter__()

    store = open_store("s3://late-bucket", replace(server.credentials(), endpoint=f"127.0.0.1:{port}"))
    thread = threading.Thread(target=start_proxy_later)
    thread.start()
    try:
        store.make_bucket()
        store.write("key", b"1")
        assert store.read("key") == b"1"
    finally:
        thread.join()
        proxies[0].__exit__(None, None, None)


@pytest.fixture
def silent_address():
    """host:port of a socket that accepts no connection."""
    with socket.socket() as silent, socket.socket() as first, socket.socket() as second:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        for client in (first, second):  # With a full backlog, Linux does not answer further connections.
            client.setblocking(False)
            client.connect_ex(silent.getsockname())
        yield f"127.0.0.1:{silent.getsockname()[1]}"


def test_connect_timeout(server, silent_address, monkeypatch):
    """The timeout does not depend on the retries: a TLS handshake with a loaded gateway takes seconds in any case."""
    assert s3.CONNECT_SECONDS == 10
    monkeypatch.setattr(s3, "CONNECT_SECONDS", 1.5)
    store = open_store("s3://bucket", replace(server.credentials(), endpoint=silent_address), retry_seconds=0)
    with pytest.raises(StorageError, match=r"check AWS_ENDPOINT_URL .*connect timeout=1\.5\)"):
        store.read("key")


@pytest.mark.parametrize("size", [4, -1])
def test_a_copy_may_take_longer_than_other_requests(server, store, proxy, monkeypatch, size):
    """The server answers when it has copied all bytes."""
    monkeypatch.setattr(s3, "READ_SECONDS", 3.0)
    patient = S3Store(store.uri, store.credentials, retry_seconds=0)
    patient.write("key", b"data")
    proxy.faults = [Fault("PUT", before=lambda: time.sleep(5))]  # Longer than READ_SECONDS.
    patient.copy(patient, "key", "copy", size=size)
    assert patient.read("copy") == b"data"
    is_over = threading.Event()
    proxy.faults = [Fault("PUT", times=2, before=lambda: is_over.wait(60))]
    with pytest.raises(StoreAway, match=r"read timeout=3\.0"):
        patient.write("key", b"data")
    is_over.set()


def test_a_copy_without_an_answer_is_sent_four_times(server, store, proxy, monkeypatch):
    """Otherwise a server that hangs would be waited for during hours."""
    monkeypatch.setattr(s3, "COPY_SECONDS", 0.5)
    patient = S3Store(store.uri, store.credentials, retry_seconds=20)
    patient.write("key", b"data")
    proxy.requests.clear()
    is_over = threading.Event()
    proxy.faults = [Fault("PUT", times=9, before=lambda: is_over.wait(60))]
    with pytest.raises(StoreAway, match=r"read timeout=0\.5"):
        patient.copy(patient, "key", "copy", size=4)
    is_over.set()
    assert methods(proxy) == ["PUT"] * 4


def test_timeout_of_await_answer(server, silent_address):
    silent = S3Store("s3://bucket", replace(server.credentials(), endpoint=silent_address))
    start = time.monotonic()
    with pytest.raises(StorageError, match=r"check AWS_ENDPOINT_URL .*timed out"):
        silent.await_answer(1)
    # The retries of other requests take minutes.
    assert time.monotonic() - start < 60


def test_await_answer_accepts_any_status(store, proxy):
    """The later requests are retried after a status such as 503."""
    proxy.faults = [Fault("HEAD", reset=True), Fault("HEAD", status=503)]
    store.await_answer(30)
    assert methods(proxy) == ["HEAD", "HEAD"]


def test_unknown_host(server):
    store = open_store("s3://bucket", replace(server.credentials(), endpoint="no-such-host.invalid"), retry_seconds=0)
    with pytest.raises(
        StorageError,
        match=r"http://no-such-host\.invalid, bucket 'bucket', key 'key': .*check AWS_ENDPOINT_URL .*resolve",
    ):
        store.read("key")


def test_broken_download_is_restarted(store, proxy, tmp_path):
    store.write("big", BIG)
    proxy.requests.clear()
    proxy.faults = [Fault("GET", times=3, cut_after=5_000_000)]
    assert store.download("big", tmp_path / "file", entry("big", BIG)) == entry("big", BIG)
    assert methods(proxy) == ["GET"] * 4
    assert content(tmp_path) == {"file": BIG}


def test_broken_range_is_requested_again(store, proxy):
    store.write("big", BIG)
    proxy.requests.clear()
    proxy.faults = [Fault("GET", status=503), Fault("GET", times=3, cut_after=5_000_000)]
    assert store.read_range("big", 1_000_000, 9_000_000).data == BIG[1_000_000:10_000_000]
    assert methods(proxy) == ["GET"] * 5
    proxy.faults = [Fault("GET", times=1000, cut_after=5_000_000)]
    with pytest.raises(StorageError, match=r"root/big': .*\(ProtocolError: "):
        store.read_range("big", 0, len(BIG))


@pytest.mark.parametrize("fault", [{"status": 200}, {"headers": {"Content-Range": "bytes 0-3/9"}}], ids=str)
def test_answer_that_is_not_the_range_is_an_error(store, proxy, fault):
    store.write("shard", b"abcdefghi")
    proxy.faults = [Fault("GET", **fault)]
    with pytest.raises(StorageError, match=r"root/shard': requested 4 bytes from byte 2 on, but the server answered "):
        store.read_range("shard", 2, 4)


def test_object_replaced_during_a_broken_download_is_not_mixed(store, proxy, server, tmp_path):
    store.write("big", BIG)
    direct = open_store(store.uri, server.credentials())
    proxy.faults = [
        Fault("GET", cut_after=5_000_000),
        Fault("GET", before=lambda: direct.write("big", BIG[::-1])),
    ]
    assert store.download("big", tmp_path / "file") == entry("big", BIG[::-1])
    assert content(tmp_path) == {"file": BIG[::-1]}


def test_attempts_of_a_download_are_limited(store, proxy, tmp_path):
    store.write("big", BIG)
    proxy.faults = [Fault("GET", times=1000, cut_after=5_000_000)]
    with pytest.raises(StorageError, match=r"root/big': .*\(ProtocolError: "):
        store.download("big", tmp_path / "file")
    assert content(tmp_path) == {}


def test_failed_part_of_an_upload_is_sent_again(store, proxy, tmp_path):
    fill(tmp_path, {"big": BIG})
    proxy.faults = [Fault("partNumber=2", times=2, status=503), Fault("partNumber=3", lose_answer=True)]
    assert store.upload(tmp_path / "big", "big") == entry("big", BIG)
    assert store.read("big") == BIG
    assert len([request for request in proxy.requests if "partNumber=1" in request]) == 1


def test_upload_whose_completion_lost_its_answer_is_stored(store, proxy, tmp_path):
    """The completion is retried, and the server does not know the upload any more."""
    fill(tmp_path, {"big": BIG})
    store.write("big", BIG[::-1])
    proxy.requests.clear()
    proxy.faults = [Fault("POST /" + store.bucket + "/root/big?uploadId=", lose_answer=True)]
    assert store.upload(tmp_path / "big", "big") == entry("big", BIG)
    assert methods(proxy) == ["POST", *["PUT"] * 3, "POST", "POST", "DELETE", "HEAD"]
    assert store.read("big") == BIG


def test_object_of_unknown_etag_is_compared_by_its_content(store, proxy, server, tmp_path):
    """The ETag of an encrypted object does not follow from its content."""
    fill(tmp_path, {"big": BIG})
    direct = open_store(store.uri, server.credentials())
    for stored, is_ours in ((BIG, True), (BIG[::-1], False)):
        proxy.requests.clear()
        proxy.faults = [
            Fault("POST /" + store.bucket + "/root/big?uploadId=", lose_answer=True),
            Fault("HEAD", before=lambda data=stored: direct.write("big", data), headers={"ETag": '"0-3"'}),
        ]
        with nullcontext() if is_ours else pytest.raises(StorageError, match="NoSuchUpload"):
            assert store.upload(tmp_path / "big", "big") == entry("big", BIG)
        assert methods(proxy)[-2:] == ["HEAD", "GET"]


@pytest.mark.parametrize("stored", [None, BIG[:-1]], ids=["no object", "object of another size"])
def test_upload_that_the_server_lost_has_failed(store, proxy, tmp_path, stored):
    if stored:
        store.write("big", stored)
    fill(tmp_path, {"big": BIG})
    proxy.requests.clear()
    body = b"<Error><Code>NoSuchUpload</Code><Message>The upload does not exist</Message></Error>"
    completion = "POST /" + store.bucket + "/root/big?uploadId="
    proxy.faults = [Fault(completion, status=404, change=lambda _: body, headers={"Content-Type": "application/xml"})]
    with pytest.raises(StorageError, match="NoSuchUpload"):
        store.upload(tmp_path / "big", "big")
    assert methods(proxy)[-3:] == ["POST", "DELETE", "HEAD"]
    assert [item.size for item in store.list()] == ([len(stored)] if stored else [])


def test_failed_upload_leaves_no_object(store, proxy, server, tmp_path):
    fill(tmp_path, {"big": BIG})
    proxy.faults = [Fault("partNumber=2", status=403)]
    with pytest.raises(StorageError, match="403"):
        store.upload(tmp_path / "big", "big")
    assert methods(proxy)[-1] == "DELETE"
    assert store.list() == []
    assert [path.name for path in (server.folder / store.bucket).rglob("*") if path.is_file()] == []


def test_existing_object_is_readable_during_an_upload(store, proxy, tmp_path):
    store.write("big", b"old")
    fill(tmp_path, {"big": BIG})
    contents = []
    proxy.faults = [Fault("partNumber=3", before=lambda: contents.append(store.read("big")))]
    store.upload(tmp_path / "big", "big")
    assert contents == [b"old"]


def test_file_that_shrinks_during_the_upload_is_not_stored(store, proxy, tmp_path):
    fill(tmp_path, {"big": BIG})
    proxy.faults = [Fault("partNumber=1", before=lambda: os.truncate(tmp_path / "big", 9 << 20))]
    store.slots = threading.BoundedSemaphore(1)  # The second part is read when the first one is sent.
    with pytest.raises(StorageError, match="has become shorter while it was uploaded"):
        store.upload(tmp_path / "big", "big")
    assert store.list() == []


def test_failed_file_ends_the_upload_of_its_folder(store, proxy, tmp_path):
    fill(tmp_path / "model", {f"file-{index:03}": b"x" for index in range(400)})
    proxy.faults = [Fault("file-003", status=403)]
    with pytest.raises(StorageError, match="file-003"):
        store.upload_folder(tmp_path / "model")
    # No further upload starts after the failure.
    assert "file-399" not in "".join(proxy.requests)


def test_damaged_response_is_detected(store, proxy, tmp_path):
    store.write("shard", b"abcd")
    proxy.faults = [Fault("GET", change=lambda data: data.replace(b"b", b"x"))]
    with pytest.raises(ChecksumMismatch, match=r"root/shard': .*SHA-256 "):
        store.download("shard", tmp_path / "file", entry("shard", b"abcd"))
    assert content(tmp_path) == {}


def test_listed_key_outside_the_folder_is_not_downloaded(store, proxy, tmp_path):
    store.write("good", b"1")
    store.write("up/outside", b"1")
    proxy.faults = [Fault("GET", change=lambda data: data.replace(b"up/outside", b"../outside"))]
    with pytest.raises(StorageError, match=r"\.\./outside': ValueError: .*'\.\./outside' is not a relative path"):
        store.download_folder(tmp_path / "down")
    assert content(tmp_path) == {}


def test_response_of_another_kind_of_server(store, proxy):
    page = b"<html><br>" + b"login " * 1000
    proxy.faults = [Fault("GET", change=lambda _: page)]
    with pytest.raises(StorageError, match=r"check AWS_ENDPOINT_URL \(ParseError"):
        store.list()
    proxy.faults = [Fault("GET", status=403, change=lambda _: page)]
    with pytest.raises(StorageError, match="Response code: 403") as error:
        store.list()
    assert len(str(error.value)) < 700


@pytest.mark.parametrize(
    ("status", "code", "message", "advice"),
    [
        (
            400,
            "AuthorizationHeaderMalformed",
            "the region 'us-east-1' is wrong; expecting 'eu-west-1'",
            "set AWS_REGION to eu-west-1 (AuthorizationHeaderMalformed)",
        ),
        (
            301,
            "PermanentRedirect",
            "use another endpoint",
            "set AWS_REGION to the bucket's region (PermanentRedirect)",
        ),
        (
            403,
            "RequestTimeTooSkewed",
            "too large a difference",
            "correct it (RequestTimeTooSkewed)",
        ),
        (
            507,
            "XMinioStorageFull",
            "Storage backend has reached its minimum free drive threshold",
            "the object store is full, delete objects or enlarge its disk (XMinioStorageFull)",
        ),
    ],
)
def test_advice_for_a_known_code(store, proxy, status, code, message, advice):
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    proxy.faults = [Fault("GET", times=5, status=status, change=lambda _: body)]
    with pytest.raises(StorageError) as error:
        store.read("key")
    assert error.value.cause.endswith(advice)


def test_advice_if_aws_denies_the_region_of_the_bucket(proxy, server, monkeypatch):
    """Accounts with read access to another owner's bucket often may not ask for its region."""
    proxy_address = parse_endpoint(proxy.url)[0].split(":")
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, port, *rest: resolve(proxy_address[0], proxy_address[1], *rest)
    )
    body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    credentials = replace(server.credentials(), endpoint="s3.amazonaws.com", region="")
    proxy.faults = [Fault("GET", times=2, status=403, change=lambda _: body)]
    with pytest.raises(StorageError, match=r"access denied: set AWS_REGION to the bucket's region .*Location"):
        open_store("s3://data", credentials).read("key")
    with pytest.raises(StorageError, match=r"access denied, check AWS_ACCESS_KEY_ID"):
        open_store("s3://data", replace(credentials, region="us-east-1")).read("key")
    assert ["location" in request for request in proxy.requests] == [True, False]


def test_overloaded_server(server, proxy):
    host, secure = parse_endpoint(proxy.url)
    store = open_store("s3://data", replace(server.credentials(), endpoint=host, secure=secure), retry_seconds=0.5)
    proxy.faults = [Fault("GET", times=9, status=503)]
    with pytest.raises(StorageError, match="overloaded, try again later"):
        store.read("key")
