"""A replica ends when its train step is lost, and for no other reason."""

import itertools
import re
import threading
import time
from contextlib import ExitStack

import pytest
from faulty_proxy import Fault, faulty_proxy
from train.programs.jobs import wait_until

from kfp_distributed.storage.object_stores.embedded import embedded_object_store
from kfp_distributed.storage.opener import open_store
from kfp_distributed.trainers.runtime.lifecycle.lost_step import Silence, after_reading, watch_heartbeat

pytestmark = pytest.mark.takes(23)

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("silence", "heartbeat", "known"),
    [
        # First answer: the age of the heartbeat counts, up to half of the limit, because clocks differ.
        (Silence(), b"999990", Silence(b"999990", 10, True)),
        (Silence(), b"1", Silence(b"1", 300, True)),
        (Silence(), b"1000007", Silence(b"1000007", 0, True)),
        (Silence(), b"", Silence(b"", 0, True)),
        (Silence(), None, Silence(None, 0, False)),
        # No change.
        (Silence(b"7", 100, True), b"7", Silence(b"7", 115, True)),
        (Silence(b"", 100, True), b"", Silence(b"", 115, True)),
        # A heartbeat.
        (Silence(b"7", 100, True), b"8", Silence(b"8", 0, True)),
        (Silence(b"", 100, True), b"8", Silence(b"8", 0, True)),
        # The store does not answer for some time, which does not count.
        (Silence(b"7", 100, True), None, Silence(b"7", 100, False)),
        (Silence(b"7", 100, False), None, Silence(b"7", 100, False)),
        (Silence(b"7", 100, False), b"7", Silence(b"7", 100, True)),
        (Silence(b"7", 100, False), b"8", Silence(b"8", 0, True)),
    ],
)
def test_silence_after_a_reading(silence, heartbeat, known):
    assert after_reading(silence, heartbeat, 15, NOW, 600) == known


@pytest.fixture
def store(tmp_path, monkeypatch):
    """An object store with a bucket, and the URI of a heartbeat in it."""
    with embedded_object_store(tmp_path / "objects") as running:
        for name, value in running.environment().items():
            monkeypatch.setenv(name, value)
        open_store("s3://jobs").make_bucket()
        yield running


URI = "s3://jobs/a-job/heartbeat"


def watching(uri, seconds):
    ended = threading.Event()
    threading.Thread(target=watch_heartbeat, args=(uri, seconds, ended.set), daemon=True).start()
    return ended


@pytest.fixture
def proxy(store, monkeypatch):
    """A proxy before the store, which counts the readings."""
    with faulty_proxy(store.endpoint) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", running.url)
        yield running


def test_a_replica_ends_without_a_heartbeat(proxy):
    assert watching(URI, 1.0).wait(120)
    assert len(proxy.requests) > 10


def test_a_replica_lives_as_long_as_the_heartbeat(store, proxy):
    direct = open_store(URI, store.credentials())
    beats = itertools.count()
    proxy.faults.append(Fault("heartbeat", times=30, before=lambda: direct.write("", b"%d" % next(beats))))
    assert watching(URI, 1.0).wait(120)
    assert len(proxy.requests) > 30 + 9


def test_a_restarted_replica_counts_the_age_of_the_heartbeat(store, proxy):
    open_store(URI, store.credentials()).write("", b"%d" % (time.time() - 100))
    assert watching(URI, 1.0).wait(120)
    assert len(proxy.requests) < 9


FAULTS = {
    "cuts connections": Fault("heartbeat", 1000, reset=True),
    "answers 503": Fault("heartbeat", 1000, status=503),
    "refuses the account": Fault("heartbeat", 1000, status=403),
    "says nothing": Fault("heartbeat", 1000, before=lambda: time.sleep(60)),  # Longer than the outage.
}


def test_a_store_that_does_not_answer_does_not_mean_a_lost_step(store, monkeypatch, capfd):
    """There is a watcher for each fault. They run at the same time, because each takes seconds."""
    open_store(URI).write("", b"%d" % time.time())
    with ExitStack() as stack:
        proxies, watchers = {}, {}
        for name, fault in FAULTS.items():
            proxies[name] = stack.enter_context(faulty_proxy(store.endpoint))
            monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxies[name].url)
            watchers[name] = watching(URI, 5.0)
            # A watcher keeps the address of its first reading.
            assert wait_until(lambda proxy=proxies[name]: len(proxy.requests) >= 2)
            proxies[name].faults.append(fault)
        time.sleep(9)  # Longer than the 5 s after which the step would be lost.
        assert [name for name, ended in watchers.items() if ended.is_set()] == []
        for proxy in proxies.values():
            proxy.faults.clear()
        # The time before the outage counts, the outage does not.
        assert [name for name, ended in watchers.items() if not ended.wait(120)] == []
    log = capfd.readouterr().out
    lines = re.findall(r"cannot read the heartbeat of the train step, retrying: (?:StorageError|StoreAway): ", log)
    assert len(lines) == len(FAULTS)
