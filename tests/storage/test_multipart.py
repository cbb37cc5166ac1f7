"""Large objects, which are sent in parts at the same time."""

import os
import threading
from io import BytesIO

import pytest
from faulty_proxy import Fault
from seaweedfs import on_each_store
from store_contract import entry, fill

from kfp_distributed.storage import StorageError
from kfp_distributed.storage.object_stores import multipart

pytestmark = [on_each_store, pytest.mark.takes(11)]
BIG = os.urandom(20 << 20)  # Three parts.


def parts(proxy):
    return sorted(
        request.split("partNumber=")[1].split("&")[0] for request in proxy.requests if "partNumber" in request
    )


def test_after_a_broken_connection_only_the_broken_part_is_sent_again(store, proxy, tmp_path):
    fill(tmp_path, {"big": BIG})
    proxy.faults = [Fault("partNumber=2", reset=True)]
    assert store.upload(tmp_path / "big", "big") == entry("big", BIG)
    assert parts(proxy) == ["1", "2", "2", "3"]
    assert store.read("big") == BIG


def test_parts_of_a_file_are_sent_at_the_same_time(store, proxy, tmp_path):
    fill(tmp_path, {"big": BIG})
    barrier = threading.Barrier(3, timeout=120)
    proxy.faults = [Fault("partNumber=", times=3, before=barrier.wait)]
    sent = []
    store.upload(tmp_path / "big", "big", sent.append)
    assert sum(sent) == len(BIG)


def test_a_part_that_fails_ends_the_upload_before_the_others_are_read(store, proxy, tmp_path):
    (tmp_path / "big").write_bytes(BIG * 20)
    proxy.faults = [Fault("partNumber=1&", status=403)]
    with pytest.raises(StorageError, match="Status403"):
        store.upload(tmp_path / "big", "big")
    assert len(parts(proxy)) <= 3 * 8, "of 50 parts"
    assert proxy.requests[-1].startswith("DELETE ")
    assert not store.exists("big")


def test_an_exception_of_the_callback_ends_an_upload_in_parts(store, proxy, tmp_path):
    (tmp_path / "big").write_bytes(BIG * 5)

    def end(count):
        raise LookupError

    with pytest.raises(LookupError):
        store.upload(tmp_path / "big", "big", end)
    assert len(parts(proxy)) <= 1
    assert not store.exists("big")
    store.upload(tmp_path / "big", "big")
    assert store.exists("big"), "no place for a part is lost"


def test_without_the_private_methods_of_minio_the_same_object_is_stored(store, tmp_path, monkeypatch):
    """They may be missing in a later version."""
    fill(tmp_path, {"big": BIG})
    monkeypatch.setattr(multipart, "has_parts", False)
    monkeypatch.delattr(multipart.PartsUpload, "send_parts")
    sent = []
    assert store.upload(tmp_path / "big", "big", sent.append) == entry("big", BIG)
    assert sum(sent) == len(BIG)
    assert store.read("big") == BIG
    store.abort_uploads()


def test_unfinished_uploads_below_the_root_are_aborted(store):
    keys = ("root/a", "root/b/c", "rooted", "d")
    identities = {key: multipart.begin_upload(store.client, store.bucket, key, {}) for key in keys}
    store.abort_uploads()
    left = {upload.upload_id for upload in multipart.unfinished_uploads(store.client, store.bucket)}
    assert left == {identities["rooted"], identities["d"]}


@pytest.mark.parametrize(("part", "is_known"), [(5 << 20, True), (8 << 20, True), (0, True), (7 << 20, False)])
def test_an_etag_proves_the_content(server, store, part, is_known):
    """Of objects that other programs sent in parts, and of one that is not divided. rclone has the MD5 of each."""
    key = f"{store.root}/big".lstrip("/")
    store.client.put_object(store.bucket, key, BytesIO(BIG), len(BIG), part_size=part or 64 << 20)
    (state,) = store.states()
    assert multipart.is_etag_of(state.etag, BytesIO(BIG), len(BIG)) == (is_known or "-" not in state.etag)
    assert not multipart.is_etag_of(state.etag, BytesIO(BIG[:-1] + b"x"), len(BIG))
    for etag in ("", "0" * 32, f"{'0' * 32}-3", "x-y"):
        assert not multipart.is_etag_of(etag, BytesIO(BIG), len(BIG))
