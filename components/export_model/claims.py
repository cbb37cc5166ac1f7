"""Claims to version numbers: one object in the store for each export in progress.

Object stores have no locks, and not all of them can create an object only if there is none. So an export first writes
a claim under a unique name, and then lists the other claims. If two exports run at a time, the one that lists last sees
the claim of the other. An export that sees a living claim withdraws. So two exports never use one number, though both
may withdraw and try again. The store only has to list all objects that were written.

A claim is a lease. It counts from the time in its name, or from its newest renewal: an object below the claim whose
name is a time. An export renews its claim only while bytes of its model move, so a hung upload loses the lease. A claim
is dead LEASE_SECONDS after its newest time. Its export stops after half of that, which leaves the other half to clocks
that differ and to requests in flight. A renewal counts for the export itself only if its write ended before that half
was over: an export that listed the claims earlier saw a living claim, and one that lists them later sees the renewal.
So renewals do not require more of the store either. The claim of a killed export dies.
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
    """The claim of an export to the number of a version.

    Attributes:
        model_name: Name of the model.
        version: Number of the version.
        name: Name of the claim: its time in Unix seconds, and a unique part.
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
    def siblings(self) -> str:
        """Prefix of all claims to this number."""
        return f"{CLAIMS}/{self.target}"

    @property
    def folder(self) -> str:
        """Prefix of the claim and of the files that the export uploads before they become visible."""
        return f"{self.siblings}{self.name}/"

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
def hold(store: Store, claim: Claim, source_run: str) -> Iterator[Literal["free", "claimed", "exists"]]:
    """Claim a number. At the end, delete the claim and the objects under the number unless they are a complete version.

    The objects that a killed export left under the number are deleted too.

    Args:
        store: Store to export to.
        claim: The claim.
        source_run: ID of the run that exports, for people who look at the claim.

    Yields:
        "free", "claimed" if another export has the number, or "exists" if there is a version with it.
    """
    state: Literal["free", "claimed", "exists"] = "claimed"
    store.write(f"{claim.folder}claim", source_run.encode())
    try:
        others = [key for key in keys_below(store, claim.siblings) if not key.startswith(claim.folder)]
        if all(age > LEASE_SECONDS for age in _claim_ages(others).values()):
            # Look for a version after the claims: an export that has just finished has deleted its claim.
            is_used = _clear(store, claim) if others else bool(keys_below(store, claim.target))
            store.delete(others)
            state = "exists" if is_used else "free"
        yield state
    finally:
        try:
            if state == "free":
                claim.check_time()  # Without the lease, the objects may belong to another export.
                _clear(store, claim)
            store.delete(keys_below(store, claim.folder))
        except StorageError as error:
            print(f"{claim.folder} stays until a later export of {claim.model_name} deletes it: {error}", flush=True)


def clear_dead(store: Store, model_name: str) -> None:
    """Delete the claims that killed exports of a model left, and their files that did not become a version."""
    keys = keys_below(store, f"{CLAIMS}/{model_name}/")
    dead = [prefix for prefix, age in _claim_ages(keys).items() if age > LEASE_SECONDS]
    for version in {int(prefix.split("/")[2]) for prefix in dead}:
        with hold(store, Claim(model_name, version), "deletes the files of a killed export"):
            pass


def _claim_ages(keys: Iterable[str]) -> dict[str, float]:
    """Return the seconds since the latest renewal of each claim, by prefix; 0 for a key that belongs to no claim."""
    now, newest = time.time(), dict[str, float]()
    for key in keys:
        match = re.match(r"([^/]+/[^/]+/[0-9]+/([0-9]+)-[^/]*/)(?:renewed/([0-9]+)$)?", key)
        prefix, made, renewed = match.groups() if match else (key, now, None)
        newest[prefix] = max(newest.get(prefix, 0.0), float(renewed or made))
    return {prefix: now - seconds for prefix, seconds in newest.items()}


def _clear(store: Store, claim: Claim) -> bool:
    """Delete the objects under a number unless they are a complete version; return whether they are."""
    is_complete = any(store.exists(claim.target + file) for file in FORMATS)
    if not is_complete:
        store.delete(keys_below(store, claim.target))
    return is_complete


def keys_below(store: Store, prefix: str) -> list[str]:
    """Return the keys that begin with a prefix."""
    return [entry.key for entry in store.list(prefix)]
