"""Who exports which version: one object in the store for each export that is under way.

Object stores have no locks, and not all can create an object only where there is none. So an export first writes a
claim of its own, under a name that nobody else uses, and looks for others' then. Of two at a time the one that looks
last sees the other's claim, whichever wrote first; who sees a living one withdraws. So two never go on with one
number, though both may withdraw and try again. All this needs of a store is that a list shows what was written.

A claim is a lease. It counts from the time in its name, or from its newest renewal: an object below the claim whose
name is a time. An export renews its claim only while bytes of its model move, so a hung upload loses the lease. A claim
is dead LEASE_SECONDS after its newest time. Its export stops after half of that, which leaves the other half to clocks
that differ and to requests that are under way. A renewal counts for the export itself only if its write ended before
that half was over: whoever listed the claims earlier saw a living claim, and whoever lists them later sees the renewal.
So renewals too need nothing of a store but that a list shows what was written. A killed export leaves its claim, which
then dies.
"""

import re
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.model import FORMATS
from kfp_distributed.storage.store import Store

CLAIMS = ".exports"
LEASE_SECONDS = 7200
# An export may hang for LEASE_SECONDS / 2; renewing twelve times as often costs one small object every ten minutes.
_RENEWALS_PER_LEASE = 12


class LeaseLost(StorageError):
    """An export may no longer write under its number, because another one may have taken it."""


@dataclass
class Claim:
    """One export's hold on a version's number.

    Attributes:
        model_name: The model.
        version: The number.
        name: The claim's own name: when it was made, in Unix seconds, and what makes it unique.
        renewed_at: Unix seconds from which the lease counts.
    """

    model_name: str
    version: int
    name: str = field(default_factory=lambda: f"{int(time.time())}-{uuid.uuid4().hex}")
    renewed_at: int = field(init=False)
    _renewing: threading.Lock = field(init=False, repr=False, compare=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.renewed_at = int(self.name.partition("-")[0])

    @property
    def target(self) -> str:
        """Prefix of the version."""
        return f"{self.model_name}/{self.version}/"

    @property
    def beside(self) -> str:
        """Prefix of the claims to this number."""
        return f"{CLAIMS}/{self.target}"

    @property
    def folder(self) -> str:
        """Prefix of all that the export keeps beside the version: the claim and the files that are on their way."""
        return f"{self.beside}{self.name}/"

    def check_time(self) -> None:
        """Check that the export may still write.

        Raises:
            LeaseLost: Half of the lease is over.
        """
        if time.time() - self.renewed_at > LEASE_SECONDS / 2:
            cause = f"the export moved no bytes for {LEASE_SECONDS // 2} s and lost its lease: export again"
            raise LeaseLost("", "", self.target, cause)

    def keep_alive(self, store: Store) -> None:
        """Renew the lease if the last renewal is some time ago. Call it whenever bytes have moved.

        Raises:
            StorageError: The renewal cannot be stored.
            LeaseLost: Half of the lease was over before a renewal was stored. Then the export must not write.
        """
        with self._renewing:
            self.check_time()
            now = int(time.time())
            if now - self.renewed_at > LEASE_SECONDS / _RENEWALS_PER_LEASE:
                store.write(f"{self.folder}renewed/{now}", b"")
                # By the old lease: another export may have listed the claims before this renewal was there.
                self.check_time()
                self.renewed_at = now


@contextmanager
def hold(store: Store, mine: Claim, source_run: str) -> Iterator[Literal["free", "claimed", "exists"]]:
    """Claims a number; at the end, deletes the claim and whatever lies under the number without being a whole version.

    What a killed export left under the number is deleted too.

    Args:
        store: Where to export to.
        mine: The claim.
        source_run: Who exports, for people who look at the claim.

    Yields:
        Whether the number is free, or who else has it: an export that is under way, or a version.
    """
    state: Literal["free", "claimed", "exists"] = "claimed"
    store.write(f"{mine.folder}claim", source_run.encode())
    try:
        others = [key for key in keys_below(store, mine.beside) if not key.startswith(mine.folder)]
        if all(age > LEASE_SECONDS for age in _claim_ages(others).values()):
            # Looked at only now: a version that another export finished a moment ago has no claim any more.
            there = _clear(store, mine) if others else keys_below(store, mine.target)
            store.delete(others)
            state = "exists" if there else "free"
        yield state
    finally:
        try:
            if state == "free":
                mine.check_time()  # later, what lies there may be another's
                _clear(store, mine)
            store.delete(keys_below(store, mine.folder))
        except StorageError as error:
            print(f"{mine.folder} stays until a later export of {mine.model_name} deletes it: {error}", flush=True)


def clear_dead(store: Store, model_name: str) -> None:
    """Deletes what killed exports of a model left: their claims, and their files where they did not get visible."""
    keys = keys_below(store, f"{CLAIMS}/{model_name}/")
    for version in {int(claim.split("/")[2]) for claim, age in _claim_ages(keys).items() if age > LEASE_SECONDS}:
        with hold(store, Claim(model_name, version), "deletes what a killed export left"):
            pass


def _claim_ages(keys: Iterable[str]) -> dict[str, float]:
    """Seconds since each claim was made or last renewed, by the claim's prefix; 0 for a key that is none of ours."""
    now, newest = time.time(), dict[str, float]()
    for key in keys:
        match = re.match(r"([^/]+/[^/]+/[0-9]+/([0-9]+)-[^/]*/)(?:renewed/([0-9]+)$)?", key)
        claim, made, renewed = match.groups() if match else (key, now, None)
        newest[claim] = max(newest.get(claim, 0.0), float(renewed or made))
    return {claim: now - seconds for claim, seconds in newest.items()}


def _clear(store: Store, mine: Claim) -> bool:
    """Deletes what lies under a number, unless it is a whole version; returns whether it is."""
    whole = any(store.exists(mine.target + file) for file in FORMATS)
    if not whole:
        store.delete(keys_below(store, mine.target))
    return whole


def keys_below(store: Store, prefix: str) -> list[str]:
    """Lists keys."""
    return [entry.key for entry in store.list(prefix)]
