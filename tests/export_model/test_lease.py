"""Uploads that take longer than a lease, and uploads that hang."""

import pytest

from kfp_distributed.components.export_model.export import publish
from kfp_distributed.components.export_model.model_source import open_source
from kfp_distributed.components.model_versions.claims import LEASE_SECONDS, Claim, LeaseLost, hold
from kfp_distributed.storage.files import list_files
from kfp_distributed.storage.object_stores.s3 import S3Store
from kfp_distributed.storage.opener import open_store

pytestmark = pytest.mark.takes(3)

RIVAL = "a rival saw"


@pytest.fixture
def slow_server(bucket, clock, monkeypatch):
    """The S3 server, with uploads that take 50 minutes for each file by the clock of claims."""
    send = S3Store.write_from

    def send_slowly(store, key, source, *content_type, **callbacks):
        entry = send(store, key, source, *content_type, **callbacks)
        if "/files/" in key and not key.endswith("export.json"):
            clock.now += 3000
        return entry

    monkeypatch.setattr(S3Store, "write_from", send_slowly)
    store = open_store(f"s3://{bucket}")
    store.make_bucket()
    return store


def one_at_a_time(monkeypatch):
    monkeypatch.setattr(S3Store, "parallel_uploads", 1)


def test_an_upload_of_many_hours_succeeds(slow_server, clock, make_model, export, bucket, monkeypatch):
    one_at_a_time(monkeypatch)
    model, began = make_model(assets=10), clock.now
    assert export(model, bucket).version == 1
    assert clock.now - began > 5 * LEASE_SECONDS
    names = [*list_files(model), "export.json"]
    assert {entry.key for entry in slow_server.list()} == {f"digits/1/{name}" for name in names}


def test_nobody_gets_the_number_of_an_upload_that_goes_on(slow_server, clock, make_model, monkeypatch):
    one_at_a_time(monkeypatch)
    model, seen, renew = make_model(assets=10), [], Claim.keep_alive

    def look(mine, store):
        renew(mine, store)
        with hold(store, Claim("digits", 1), RIVAL) as state:
            seen.append((clock.now, state))

    monkeypatch.setattr(Claim, "keep_alive", look)
    mine = Claim("digits", 1)
    with hold(slow_server, mine, "run-1"):
        publish(slow_server, mine, open_source(str(model), str(model), slow_server), {})
    assert seen[-1][0] - seen[0][0] > 5 * LEASE_SECONDS
    assert {state for _, state in seen} == {"claimed"}
    with hold(slow_server, Claim("digits", 1), RIVAL) as state:
        assert state == "exists"


def test_a_hung_upload_loses_its_lease(slow_server, clock, make_model, monkeypatch):
    one_at_a_time(monkeypatch)
    model, mine, send = make_model(), Claim("digits", 1), S3Store.write_from

    def hang(store, key, source, *content_type, **callbacks):
        clock.now += LEASE_SECONDS if key.endswith("words001.txt") else 0
        return send(store, key, source, *content_type, **callbacks)

    monkeypatch.setattr(S3Store, "write_from", hang)
    with (
        pytest.raises(LeaseLost, match="moved no bytes for 3600 s and lost its lease"),
        hold(slow_server, mine, "run-1"),
    ):
        publish(slow_server, mine, open_source(str(model), str(model), slow_server), {})
    clock.now += LEASE_SECONDS
    with hold(slow_server, Claim("digits", 1), RIVAL) as state:
        assert state == "free"
    assert slow_server.list() == []


def test_one_large_file_renews_the_lease_while_it_is_read(tmp_path, clock):
    file, mine, store = tmp_path / "large", Claim("digits", 1), open_store(str(tmp_path / "store"))
    file.write_bytes(bytes(20 << 20))

    def read_slowly(_):
        clock.now += 1000
        mine.keep_alive(store)

    store.upload(file, "copy", read_slowly)
    assert clock.now - int(mine.name.partition("-")[0]) > 2 * LEASE_SECONDS
    mine.check_time()
    assert store.read("copy") == file.read_bytes()
