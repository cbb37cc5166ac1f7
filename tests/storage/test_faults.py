"""The S3 store when the network and the server fail, by a proxy before a real server."""

import logging
import os
import socket
import threading
import time
import uuid
from dataclasses import replace

import pytest
from faulty_proxy import Fault, faulty_proxy
from store_contract import content, entry, fill

from kfp_distributed.components.train.runners.local.ports import free_ports
from kfp_distributed.storage import ChecksumMismatch, KeyNotFound, StorageError, open_store, s3
from kfp_distributed.storage.s3 import S3Store
from kfp_distributed.storage.uri import parse_endpoint

BIG = os.urandom(20 << 20)  # Three parts.


@pytest.fixture
def proxy(server):
    with faulty_proxy(server.endpoint) as running:
        yield running


@pytest.fixture
def store(server, proxy):
    """A store behind the proxy. It gives up after 20 s, which no test waits for."""
    uri = f"s3://test-{uuid.uuid4().hex[:12]}/root"
    host, secure = parse_endpoint(proxy.url)
    behind = open_store(uri, replace(server.credentials(), endpoint=host, secure=secure), retry_seconds=20)
    behind.make_bucket()
    proxy.requests.clear()
    return behind


def methods(proxy):
    return [request.split()[0] for request in proxy.requests]


@pytest.mark.parametrize(
    "fault",
    [{"status": status} for status in (429, 500, 502, 503, 504)] + [{"reset": True}, {"lose_answer": True}],
    ids=str,
)
def test_passing_faults_are_repeated_in_every_call(store, proxy, fault, tmp_path):
    proxy.faults = [Fault("PUT", times=2, **fault), *(Fault(method, **fault) for method in ("GET", "HEAD", "POST"))]
    store.write("key", b"data")
    assert store.read("key") == b"data"
    assert store.exists("key")
    store.delete(["key"])
    assert [fault.times for fault in proxy.faults] == [0, 0, 0, 0]
    assert methods(proxy) == ["PUT"] * 3 + ["GET"] * 2 + ["HEAD"] * 2 + ["POST"] * 2
    assert store.list() == []


@pytest.mark.parametrize("status", [400, 403, 404, 405])
def test_lasting_faults_are_not(store, proxy, status):
    proxy.faults = [Fault("PUT", times=1, status=status)]
    with pytest.raises(StorageError, match=str(status)) as caught:
        store.write("key", b"data")
    assert methods(proxy) == ["PUT"]
    assert (caught.value.endpoint, caught.value.key) == (proxy.url, "root/key")


def test_missing_keys_and_wrong_keys_are_asked_for_once(store, proxy):
    with pytest.raises(KeyNotFound):
        store.read("key")
    assert not store.exists("key")
    assert methods(proxy) == ["GET", "HEAD"]


def test_the_time_for_repeating_is_bounded(server, caplog):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{unused.getsockname()[1]}"
    store = open_store("s3://bucket", replace(server.credentials(), endpoint=endpoint), retry_seconds=1)
    began = time.monotonic()
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(StorageError, match=r"check AWS_ENDPOINT_URL .*Connection refused") as caught,
    ):
        store.read("key")
    assert time.monotonic() - began < 30
    assert str(caught.value).startswith(f"http://{endpoint}, bucket 'bucket', key 'key': ")
    assert len(caplog.records) == 2
    assert server.secret_key not in caplog.text + repr(caught.getrepr())


def test_a_server_that_comes_late_is_waited_for(server, tmp_path):
    # Among those that no outgoing connection takes in the meantime.
    (port,) = free_ports(1)
    opened = []

    def open_later():
        time.sleep(1)
        opened.append(faulty_proxy(server.endpoint, port=port))
        opened[0].__enter__()

    store = open_store("s3://late-bucket", replace(server.credentials(), endpoint=f"127.0.0.1:{port}"))
    thread = threading.Thread(target=open_later)
    thread.start()
    try:
        store.make_bucket()
        store.write("key", b"1")
        assert store.read("key") == b"1"
    finally:
        thread.join()
        opened[0].__exit__(None, None, None)


@pytest.fixture
def silent_address():
    """host:port where no connection is ever accepted."""
    with socket.socket() as silent, socket.socket() as first, socket.socket() as second:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        for client in (first, second):  # With a full backlog, Linux answers no further connection.
            client.setblocking(False)
            client.connect_ex(silent.getsockname())
        yield f"127.0.0.1:{silent.getsockname()[1]}"


def test_a_silent_address_is_given_up_after_the_connect_timeout(server, silent_address, monkeypatch):
    """It does not depend on the retries: the handshake of a loaded gateway may take seconds without any, too."""
    assert s3._CONNECT_SECONDS == 10
    monkeypatch.setattr(s3, "_CONNECT_SECONDS", 1.5)
    store = open_store("s3://bucket", replace(server.credentials(), endpoint=silent_address), retry_seconds=0)
    with pytest.raises(StorageError, match=r"does not answer, check AWS_ENDPOINT_URL .*connect timeout=1\.5\)"):
        store.read("key")


def test_a_first_answer_is_waited_for_as_long_as_one_says(server, silent_address):
    silent = S3Store("s3://bucket", replace(server.credentials(), endpoint=silent_address))
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"does not answer, check AWS_ENDPOINT_URL .*timed out"):
        silent.await_answer(1)
    assert time.monotonic() - began < 9


def test_any_answer_is_one(store, proxy):
    """Also that of a server which is full; whatever comes next is repeated as usual."""
    proxy.faults = [Fault("HEAD", reset=True), Fault("HEAD", status=503)]
    store.await_answer(30)
    assert methods(proxy) == ["HEAD", "HEAD"]


def test_an_unknown_host_is_named(server):
    store = open_store("s3://bucket", replace(server.credentials(), endpoint="no-such-host.invalid"), retry_seconds=0)
    with pytest.raises(
        StorageError,
        match=r"http://no-such-host\.invalid, bucket 'bucket', key 'key': .*check AWS_ENDPOINT_URL .*resolve",
    ):
        store.read("key")


def test_a_cut_download_is_begun_again(store, proxy, tmp_path):
    store.write("big", BIG)
    proxy.requests.clear()
    proxy.faults = [Fault("GET", times=3, cut_after=5_000_000)]
    assert store.download("big", tmp_path / "file", entry("big", BIG)) == entry("big", BIG)
    assert methods(proxy) == ["GET"] * 4
    assert content(tmp_path) == {"file": BIG}


def test_an_object_replaced_during_a_cut_download_is_not_mixed(store, proxy, server, tmp_path):
    store.write("big", BIG)
    direct = open_store(store.uri, server.credentials())
    proxy.faults = [
        Fault("GET", cut_after=5_000_000),
        Fault("GET", before=lambda: direct.write("big", BIG[::-1])),
    ]
    assert store.download("big", tmp_path / "file") == entry("big", BIG[::-1])
    assert content(tmp_path) == {"file": BIG[::-1]}


def test_a_download_that_is_always_cut_ends(store, proxy, tmp_path):
    store.write("big", BIG)
    proxy.faults = [Fault("GET", times=1000, cut_after=5_000_000)]
    with pytest.raises(StorageError, match="root/big': ProtocolError: "):
        store.download("big", tmp_path / "file")
    assert content(tmp_path) == {}


def test_a_part_of_an_upload_is_sent_again(store, proxy, tmp_path):
    fill(tmp_path, {"big": BIG})
    proxy.faults = [Fault("partNumber=2", times=2, status=503), Fault("partNumber=3", lose_answer=True)]
    assert store.upload(tmp_path / "big", "big") == entry("big", BIG)
    assert store.read("big") == BIG
    assert len([request for request in proxy.requests if "partNumber=1" in request]) == 1


def test_a_failed_upload_leaves_nothing(store, proxy, server, tmp_path):
    fill(tmp_path, {"big": BIG})
    proxy.faults = [Fault("partNumber=2", status=403)]
    with pytest.raises(StorageError, match="403"):
        store.upload(tmp_path / "big", "big")
    assert methods(proxy)[-1] == "DELETE"
    assert store.list() == []
    assert [path.name for path in (server.folder / store.bucket).rglob("*") if path.is_file()] == []


def test_an_upload_keeps_what_was_there_until_it_is_whole(store, proxy, tmp_path):
    store.write("big", b"older")
    fill(tmp_path, {"big": BIG})
    seen = []
    proxy.faults = [Fault("partNumber=3", before=lambda: seen.append(store.read("big")))]
    store.upload(tmp_path / "big", "big")
    assert seen == [b"older"]


def test_a_file_that_shrinks_on_its_way_is_not_stored(store, proxy, tmp_path):
    fill(tmp_path, {"big": BIG})
    proxy.faults = [Fault("partNumber=1", before=lambda: os.truncate(tmp_path / "big", 9 << 20))]
    with pytest.raises(StorageError, match="having not enough data"):
        store.upload(tmp_path / "big", "big")
    assert store.list() == []


def test_a_file_that_fails_ends_the_upload_of_its_folder(store, proxy, tmp_path):
    fill(tmp_path / "model", {f"file-{index:02}": b"x" for index in range(50)})
    proxy.faults = [Fault("file-03", status=403)]
    with pytest.raises(StorageError, match="file-03"):
        store.upload_folder(tmp_path / "model")
    # After the failure no further file is begun.
    assert "file-49" not in "".join(proxy.requests)


def test_a_damaged_answer_is_noticed(store, proxy, tmp_path):
    store.write("shard", b"abcd")
    proxy.faults = [Fault("GET", change=lambda data: data.replace(b"b", b"x"))]
    with pytest.raises(ChecksumMismatch, match="root/shard': is damaged"):
        store.download("shard", tmp_path / "file", entry("shard", b"abcd"))
    assert content(tmp_path) == {}


def test_a_listed_key_that_leaves_the_folder_is_not_downloaded(store, proxy, tmp_path):
    store.write("good", b"1")
    store.write("up/outside", b"1")
    proxy.faults = [Fault("GET", change=lambda data: data.replace(b"up/outside", b"../outside"))]
    with pytest.raises(StorageError, match=r"\.\./outside': ValueError: the key '\.\./outside' is no relative path"):
        store.download_folder(tmp_path / "down")
    assert content(tmp_path) == {}


def test_an_answer_of_something_that_is_no_object_store(store, proxy):
    page = b"<html><br>" + b"login " * 1000
    proxy.faults = [Fault("GET", change=lambda _: page)]
    with pytest.raises(StorageError, match=r"no object store's answer, check AWS_ENDPOINT_URL \(ParseError"):
        store.list()
    proxy.faults = [Fault("GET", status=403, change=lambda _: page)]
    with pytest.raises(StorageError, match="Response code: 403") as caught:
        store.list()
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("status", "code", "message", "cause"),
    [
        (
            400,
            "AuthorizationHeaderMalformed",
            "the region 'us-east-1' is wrong; expecting 'eu-west-1'",
            "the bucket is in another region, set AWS_REGION to eu-west-1 (AuthorizationHeaderMalformed)",
        ),
        (
            301,
            "PermanentRedirect",
            "use another endpoint",
            "the bucket is in another region, set AWS_REGION to its region (PermanentRedirect)",
        ),
        (
            403,
            "RequestTimeTooSkewed",
            "too large a difference",
            "the server refuses this machine's time, set its clock (RequestTimeTooSkewed)",
        ),
    ],
)
def test_an_answer_with_a_known_code_has_advice(store, proxy, status, code, message, cause):
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    proxy.faults = [Fault("GET", times=5, status=status, change=lambda _: body)]
    with pytest.raises(StorageError) as caught:
        store.read("key")
    assert caught.value.cause == cause


def test_where_aws_does_not_tell_a_region_the_advice_is_to_set_it(proxy, server, monkeypatch):
    """An account that may only read a bucket of others may not ask for the region of it."""
    proxy_address = parse_endpoint(proxy.url)[0].split(":")
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, port, *rest: resolve(proxy_address[0], proxy_address[1], *rest)
    )
    body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    credentials = replace(server.credentials(), endpoint="s3.amazonaws.com", region="")
    proxy.faults = [Fault("GET", times=2, status=403, change=lambda _: body)]
    with pytest.raises(StorageError, match=r"refuses the account: set AWS_REGION to the bucket's region, .*Location"):
        open_store("s3://data", credentials).read("key")
    with pytest.raises(StorageError, match=r"refuses the account, check AWS_ACCESS_KEY_ID"):
        open_store("s3://data", replace(credentials, region="us-east-1")).read("key")
    assert ["location" in request for request in proxy.requests] == [True, False]


def test_a_server_that_stays_overloaded_is_named(server, proxy):
    host, secure = parse_endpoint(proxy.url)
    store = open_store("s3://data", replace(server.credentials(), endpoint=host, secure=secure), retry_seconds=0.5)
    proxy.faults = [Fault("GET", times=9, status=503)]
    with pytest.raises(StorageError, match="starting or overloaded, try again later"):
        store.read("key")
