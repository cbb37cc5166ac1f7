"""Aliases, deletion and retention of exported versions, against a real S3 server and in a folder."""

import random
import threading
import time

import pytest

from kfp_distributed.components.model_versions.aliases import (
    deleted_versions,
    latest_version,
    read_aliases,
    remove_alias,
    resolve,
    set_alias,
    version_of,
)
from kfp_distributed.components.model_versions.claims import Claim, hold
from kfp_distributed.components.model_versions.deletion import delete_version, surplus_versions
from kfp_distributed.components.model_versions.versions import VersionRefused, read_complete
from kfp_distributed.storage.opener import open_store

pytestmark = pytest.mark.takes(16)


@pytest.fixture(params=["s3", "folder"])
def root(request, bucket, tmp_path):
    uri = f"s3://{bucket}/team" if request.param == "s3" else str(tmp_path / "exports")
    open_store(uri).make_bucket()
    return uri


@pytest.fixture
def store(root):
    return open_store(root)


def versions(store):
    return sorted({entry.key.split("/")[1] for entry in store.list("digits/")})


def test_an_alias_moves_and_is_removed(root, store, make_model, export):
    model = make_model()
    export(model, root)
    export(model, root)
    set_alias(store, "digits", 1, "production")
    assert store.read(".exports/digits/aliases/production") == b"1"
    assert resolve(f"{root}/digits@production") == f"{root}/digits/1"
    assert resolve(f"{root}/digits@latest") == f"{root}/digits/2"
    set_alias(store, "digits", 2, "production")
    assert read_aliases(store, "digits") == {"production": 2}
    assert resolve(f"{root}/digits/1") == f"{root}/digits/1"
    remove_alias(store, "digits", "production")
    with pytest.raises(VersionRefused, match="digits has no alias 'production'; it has latest"):
        resolve(f"{root}/digits@production")
    with pytest.raises(VersionRefused, match="has no alias"):
        remove_alias(store, "digits", "production")


def test_an_alias_names_only_a_complete_version(root, store, make_model, export):
    with pytest.raises(VersionRefused, match="digits has no complete version: export one"):
        version_of(store, "digits", "latest")
    export(make_model(), root)
    store.write("digits/5/saved_model.pb", b"of another tool")
    for version, error in ((4, "digits/4 does not exist"), (5, "digits/5 is not a complete version")):
        with pytest.raises(VersionRefused, match=error):
            set_alias(store, "digits", version, "production")
    assert (latest_version(store, "digits"), read_aliases(store, "digits")) == (1, {})


def test_a_folder_whose_name_has_an_at_sign_is_still_a_model(root, store):
    store.write("digits@old/model.json", b"{}")
    assert resolve(f"{root}/digits@old") == f"{root}/digits@old"


def test_a_deleted_number_is_never_used_again(root, store, make_model, export):
    model = make_model()
    export(model, root)
    export(model, root)
    delete_version(store, "digits", 2)
    assert (versions(store), deleted_versions(store, "digits")) == (["1"], {2})
    assert {entry.key.split("/")[2] for entry in store.list(".exports/")} == {"deleted"}
    with pytest.raises(ValueError, match="digits/2 was deleted, and its number is not used again"):
        export(model, root, version=2)
    assert export(model, root).version == 3
    with pytest.raises(VersionRefused):
        set_alias(store, "digits", 2, "production")


def test_what_is_not_deleted(root, store, make_model, export):
    export(make_model(), root)
    set_alias(store, "digits", 1, "production")
    store.write("digits/2/saved_model.pb", b"of another tool")
    store.write("digits/3/model.pt", b"of another tool")
    before = store.list()
    for version, error in (
        (1, "digits/1 has the alias production: move or remove it first"),
        (2, "digits/2 is not a version of export_model"),
        (3, "digits/3 is not a version of export_model"),
    ):
        with pytest.raises(VersionRefused, match=error):
            delete_version(store, "digits", version)
    assert store.list() == before


def test_an_interrupted_deletion_is_finished_by_the_next_export(root, store, make_model, export, monkeypatch):
    model = make_model()
    export(model, root)

    def fail(keys):
        if keys := list(keys):
            store.__class__.delete(store, keys[:1])
            if "claim" not in keys[0]:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "delete", fail)
        with pytest.raises(KeyboardInterrupt):
            delete_version(store, "digits", 1)
    assert not store.exists("digits/1/saved_model.pb")
    assert store.exists("digits/1/export.json")
    assert export(model, root).version == 2
    assert versions(store) == ["2"]


def test_a_version_is_incomplete_after_the_first_step_of_its_deletion(root, store, tmp_path, export, monkeypatch):
    """Also one of a format that no server loads, to which somebody has added a file."""
    model = tmp_path / "model"
    model.mkdir()
    for name in ("labels.txt", "model.keras"):
        (model / name).write_text(name)
    export(model, root)
    store.write("digits/1/README", b"somebody's")

    def fail(keys):
        store.__class__.delete(store, keys := [*keys])
        if "claim" not in keys[0]:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "delete", fail)
        with pytest.raises(KeyboardInterrupt):
            delete_version(store, "digits", 1)
    assert store.exists("digits/1/export.json")
    assert not read_complete(store, "digits/1/")
    assert export(model, root).version == 2
    assert versions(store) == ["2"]


def test_a_deletion_that_ended_after_its_record_is_finished_by_the_next_export(
    root, store, make_model, export, monkeypatch
):
    model = make_model()
    export(model, root)

    def fail(keys):
        if "claim" not in (keys := [*keys])[0]:
            raise KeyboardInterrupt
        store.__class__.delete(store, keys)

    with monkeypatch.context() as patch:
        patch.setattr(store, "delete", fail)
        with pytest.raises(KeyboardInterrupt):
            delete_version(store, "digits", 1)
    assert deleted_versions(store, "digits") == {1}
    assert store.exists("digits/1/saved_model.pb")
    assert export(model, root).version == 2
    assert versions(store) == ["2"]


def test_a_claim_keeps_others_away(bucket, make_model, export, monkeypatch):
    export(make_model(), bucket)
    store = open_store(f"s3://{bucket}")
    monkeypatch.setattr(random, "uniform", lambda *_: 0)
    with hold(store, Claim("digits", 1), "deletes the version"):
        with pytest.raises(VersionRefused, match="digits/1 is being exported, deleted or given an alias"):
            set_alias(store, "digits", 1, "production")
        with pytest.raises(VersionRefused, match="digits/1 is being exported, deleted or given an alias"):
            delete_version(store, "digits", 1)
    assert read_aliases(store, "digits") == {}


@pytest.mark.parametrize("round_", range(10))
def test_an_alias_and_a_deletion_at_once(root, store, make_model, export, round_):
    """One of them wins. The alias never names a deleted version."""
    export(make_model(), root)
    results = {}

    def attempt(name, action, delay):
        time.sleep(delay)  # Each round lets the two meet at another moment.
        try:
            action()
            results[name] = "done"
        except VersionRefused as error:
            results[name] = str(error)

    actions = {
        "alias": (lambda: set_alias(open_store(root), "digits", 1, "production"), 0.004 * round_),
        "delete": (lambda: delete_version(open_store(root), "digits", 1), 0.02),
    }
    threads = [threading.Thread(target=attempt, args=(name, *action)) for name, action in actions.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = {name for name, result in results.items() if result == "done"}
    assert len(done) == 1, results
    expected = ({"production": 1}, ["1"]) if done == {"alias"} else ({}, [])
    assert (read_aliases(store, "digits"), versions(store)) == expected


@pytest.mark.parametrize(
    ("complete", "keep", "spared", "expected"),
    [
        ([], 1, [], []),
        ([1, 2, 3], 3, [], []),
        ([1, 2, 3, 10], 2, [], [2, 1]),
        ([1, 2, 3, 10], 1, [2], [3, 1]),
        ([1, 2, 3], 1, [1], [2]),
    ],
)
def test_surplus_versions(complete, keep, spared, expected):
    assert surplus_versions(complete, keep, spared) == expected


def test_an_export_moves_aliases_and_deletes_old_versions(root, store, make_model, export, tmp_path, capsys):
    model = make_model()
    for _ in range(3):
        export(model, root)
    set_alias(store, "digits", 1, "production")
    set_alias(store, "digits", 3, "candidate")
    store.write("digits/2/extra", b"")
    store.write("words/1/saved_model.pb", b"")
    exported = export(model, root, aliases=["candidate", "newest"], keep=1)
    assert versions(store) == ["1", "4"]
    assert read_aliases(store, "digits") == {"candidate": 4, "newest": 4, "production": 1}
    assert f"candidate is {exported.uri}\n" in capsys.readouterr().out
    assert store.exists("words/1/saved_model.pb")


def test_a_version_with_a_low_number_is_not_deleted_by_its_own_export(root, store, make_model, export):
    model = make_model()
    export(model, root, version=9)
    export(model, root, version=2, keep=1)
    assert versions(store) == ["2", "9"]


@pytest.mark.parametrize(
    ("options", "error"),
    [({"aliases": ["latest"]}, "alias 'latest' always means"), ({"keep": -1}, "keep=-1 is not allowed")],
)
def test_wrong_aliases_and_keep_export_nothing(root, store, make_model, export, options, error):
    with pytest.raises(ValueError, match=error):
        export(make_model(), root, **options)
    assert store.list() == []
