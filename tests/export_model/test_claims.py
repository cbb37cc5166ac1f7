import json
import time

import pytest

from kfp_distributed.components.model_versions.claims import LEASE_SECONDS, Claim, LeaseLost, clear_dead, hold
from kfp_distributed.storage.folder import FolderStore
from kfp_distributed.storage.opener import open_store

COMMIT = "digits/1/saved_model.pb"
SECOND_COMMIT = "digits/1/model.onnx"
MANIFEST = "digits/1/export.json"
PART = "digits/1/variables/variables.index"


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path))


@pytest.fixture
def keys(store):
    return lambda: [entry.key for entry in store.list()]


def claim_of_age(seconds, version=1, token="ab"):
    return Claim("digits", version, f"{time.time() - seconds:.0f}-{token}")


def leave(store, claim, *keys):
    """Write the objects that a killed export leaves."""
    for key in (f"{claim.folder}claim", *keys):
        store.write(key, DESCRIPTIONS.get(key, b""))


def describe(*keys):
    files = [{"path": key.rpartition("/")[2], "size": 0, "sha256": ""} for key in keys]
    return json.dumps({"files": files, "metrics": {}}).encode()


# Of an export of a model with one file that servers load, and with two.
DESCRIPTIONS = {MANIFEST: describe(PART, COMMIT), "digits/2/export.json": describe("digits/2/saved_model.pb")}
BOTH = describe(PART, COMMIT, SECOND_COMMIT)


def test_a_claim_holds_its_number_until_the_end(store, keys):
    mine = Claim("digits", 1)
    with hold(store, mine, "run-1") as state:
        assert state == "free"
        assert {key: store.read(key) for key in keys()} == {f"{mine.folder}claim": b"run-1"}
        with hold(store, Claim("digits", 1), "run-2") as other:
            assert other == "claimed"
        with hold(store, Claim("digits", 2), "run-2") as other:
            assert other == "free"
        with hold(store, Claim("digit", 1), "run-2") as other:
            assert other == "free"
        assert keys() == [f"{mine.folder}claim"]
    assert keys() == []


def test_two_exports_that_see_each_other_both_withdraw(store, keys):
    first, second = Claim("digits", 1), Claim("digits", 1)
    leave(store, second)  # written before the first one looked
    with hold(store, first, "run-1") as state:
        assert state == "claimed"
    with hold(store, second, "run-2") as state:
        assert state == "free"


def test_an_export_whose_claim_is_not_listed_withdraws(tmp_path, keys):
    class Forgetful(FolderStore):
        """Lists no claims, as `rclone serve s3` does for a moment after the last claim to a number was deleted."""

        def children(self, folder=""):
            return [] if folder == ".exports/digits/1" else super().children(folder)

    store = Forgetful(tmp_path)
    with hold(store, Claim("digits", 1), "run-1") as state:
        assert state == "claimed"
    with hold(store, Claim("digits", 2), "run-1") as state:
        assert state == "free"
    assert keys() == []


def test_an_incomplete_version_is_deleted_at_the_end(store, keys):
    mine = Claim("digits", 1)
    with hold(store, mine, "run-1"):
        leave(store, mine, f"{mine.folder}files/saved_model.pb", PART)
    assert keys() == []


def test_a_complete_version_is_kept_at_the_end(store, keys):
    mine = Claim("digits", 1)
    with hold(store, mine, "run-1"):
        leave(store, mine, f"{mine.folder}files/saved_model.pb", PART, MANIFEST, COMMIT)
    assert keys() == [MANIFEST, COMMIT, PART]


@pytest.mark.parametrize("committed", [[], [COMMIT], [SECOND_COMMIT]])
def test_a_version_without_one_of_its_two_formats_is_incomplete(store, keys, committed):
    """A killed export may have copied only the first of them. Readers of the other format would never see the model."""
    for end in ("failed", "killed"):
        mine = Claim("digits", 1) if end == "failed" else claim_of_age(LEASE_SECONDS + 2)
        leave(store, mine, PART, MANIFEST, *committed)
        store.write(MANIFEST, BOTH)
        if end == "killed":
            clear_dead(store, "digits")
        else:
            store.delete([f"{mine.folder}claim", PART, MANIFEST, *committed])
            with hold(store, mine, "run-1"):
                leave(store, mine, PART, *committed)
                store.write(MANIFEST, BOTH)
        assert keys() == []


def test_a_version_with_both_of_its_formats_is_complete(store, keys):
    leave(store, claim_of_age(LEASE_SECONDS + 2), PART, MANIFEST, COMMIT, SECOND_COMMIT)
    store.write(MANIFEST, BOTH)
    clear_dead(store, "digits")
    assert keys() == [MANIFEST, SECOND_COMMIT, COMMIT, PART]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": [1]}', '{"files": [{"name": "x"}]}'])
def test_a_version_with_a_manifest_of_another_tool_is_kept(store, keys, text):
    leave(store, claim_of_age(LEASE_SECONDS + 2), PART, MANIFEST)
    store.write(MANIFEST, text.encode())
    clear_dead(store, "digits")
    assert keys() == [MANIFEST, PART]


@pytest.mark.parametrize("there", [[PART], [PART, COMMIT]])
def test_objects_of_other_tools_are_kept(store, keys, there):
    for key in there:
        store.write(key, b"")
    with hold(store, Claim("digits", 1), "run-1") as state:
        assert state == "exists"
    assert keys() == sorted(there)


@pytest.mark.parametrize(
    ("age", "there", "state", "left"),
    [
        (LEASE_SECONDS - 60, [PART], "claimed", [PART]),
        (LEASE_SECONDS + 2, [PART], "free", []),
        (LEASE_SECONDS + 2, [], "free", []),
        (LEASE_SECONDS + 2, [PART, MANIFEST, COMMIT], "exists", [MANIFEST, COMMIT, PART]),
        (LEASE_SECONDS + 2, [PART, MANIFEST], "free", []),
        # Of another tool: an export writes its manifest before the file that servers load.
        (LEASE_SECONDS + 2, [PART, COMMIT], "exists", [COMMIT, PART]),
    ],
)
def test_a_dead_claim_is_replaced(store, keys, age, there, state, left):
    dead = claim_of_age(age)
    leave(store, dead, f"{dead.folder}files/saved_model.pb", *there)
    with hold(store, Claim("digits", 1), "run-2") as found:
        assert found == state
        assert [key for key in keys() if key.startswith("digits/")] == left
    beside = [f"{dead.folder}claim", f"{dead.folder}files/saved_model.pb"] if state == "claimed" else []
    assert keys() == [*beside, *left]


def test_an_export_that_lost_its_lease_before_it_has_the_number_deletes_nothing(tmp_path, clock, keys):
    class SlowToList(FolderStore):
        """Lists claims so slowly that a rival takes the number of a killed export."""

        def children(self, folder=""):
            names = super().children(folder)
            if folder == ".exports/digits/1":
                clock.now += LEASE_SECONDS
                self.write(PART, b"of the rival")
            return names

    store, slow = SlowToList(tmp_path), Claim("digits", 1, f"{clock.now:.0f}-ab")
    leave(store, Claim("digits", 1, f"{clock.now - LEASE_SECONDS - 2:.0f}-cd"))
    with pytest.raises(LeaseLost, match="moved no bytes for 3600 s and lost its lease"), hold(store, slow, "run-1"):
        pass
    assert store.read(PART) == b"of the rival"


def test_an_export_that_lost_its_lease_writes_nothing(store, clock, keys):
    slow = Claim("digits", 1, f"{clock.now:.0f}-ab")
    with hold(store, slow, "run-1"):
        clock.now += LEASE_SECONDS / 2 + 2
        store.write(PART, b"of the one that took over")
        with pytest.raises(LeaseLost, match="moved no bytes for 3600 s and lost its lease: export again"):
            slow.check_time()
    assert keys() == [f"{slow.folder}claim", PART]


def test_a_lease_counts_from_its_latest_renewal(store, keys):
    renewed = claim_of_age(3 * LEASE_SECONDS)
    leave(store, renewed, *(f"{renewed.folder}renewed/{time.time() - age:.0f}" for age in (2 * LEASE_SECONDS, 60)))
    before = keys()
    clear_dead(store, "digits")
    with hold(store, Claim("digits", 1), "run-2") as state:
        assert state == "claimed"
    assert keys() == before


def test_a_claim_with_an_old_renewal_is_dead(store, keys):
    dead = claim_of_age(3 * LEASE_SECONDS)
    leave(store, dead, f"{dead.folder}renewed/{time.time() - LEASE_SECONDS - 2:.0f}", PART)
    clear_dead(store, "digits")
    assert keys() == []


def test_a_renewal_that_was_stored_too_late_does_not_count(tmp_path, clock, keys):
    class SlowToStore(FolderStore):
        def write(self, key, data):
            super().write(key, data)
            clock.now += LEASE_SECONDS / 2 if "/renewed/" in key else 0

    mine = Claim("digits", 1)
    clock.now += LEASE_SECONDS / 4
    with pytest.raises(LeaseLost, match="lost its lease"):
        mine.keep_alive(SlowToStore(tmp_path))
    with pytest.raises(LeaseLost, match="lost its lease"):
        mine.check_time()
    assert len(keys()) == 1


def test_leftovers_of_all_numbers_are_deleted(store, keys):
    dead, visible = claim_of_age(LEASE_SECONDS + 2), claim_of_age(LEASE_SECONDS + 2, version=2)
    living, other = claim_of_age(60, version=3), Claim("words", 1, "0-ab")
    leave(store, dead, PART)
    leave(store, visible, "digits/2/export.json", "digits/2/saved_model.pb")
    leave(store, living, "digits/3/variables/variables.index")
    leave(store, other)
    store.write(".exports/digits/notes.txt", b"somebody's")
    clear_dead(store, "digits")
    assert keys() == sorted(
        [
            ".exports/digits/notes.txt",
            f"{living.folder}claim",
            f"{other.folder}claim",
            "digits/2/export.json",
            "digits/2/saved_model.pb",
            "digits/3/variables/variables.index",
        ]
    )
