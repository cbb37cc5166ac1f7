"""The name of the newest checkpoint, as a runner reads it when a replica fails."""

import pytest

from kfp_distributed.components.train.run.runners import newest_checkpoint
from kfp_distributed.components.train.run.runners.newest_checkpoint import NewestCheckpoint
from kfp_distributed.storage.opener import open_store


def test_the_newest_complete_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(newest_checkpoint, "VALID_SECONDS", -1.0)
    store, newest = open_store(str(tmp_path)), NewestCheckpoint(str(tmp_path))
    assert newest.read() == ""
    for name in ("00000002.json", "00000010.json", "00000011/weights"):
        store.write(name, b"{}")
    assert newest.read() == "00000010"


def test_a_name_is_used_again_for_a_moment(tmp_path):
    newest = NewestCheckpoint(str(tmp_path))
    assert newest.read() == ""
    open_store(str(tmp_path)).write("00000001.json", b"{}")
    assert newest.read() == ""


@pytest.mark.parametrize("uri", ["", "s3://bucket/without-credentials"])
def test_without_a_store_there_is_no_name(uri, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert NewestCheckpoint(uri).read() == ""
