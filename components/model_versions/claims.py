"""Claims to version numbers: one object in the store for each export in progress.

Object stores have no locks, and not all of them can create an object only if there is none. So an export first writes
a claim under a unique name, and then lists the other claims. If two exports run at a time, the one that lists last sees
the claim of the other. An export that sees a living claim withdraws. So two exports never use one number, though both
may withdraw and try again. The store only has to list all objects that were written. It withdraws too if its own claim
is not listed. On a busy machine `rclone serve s3` may list nothing for a moment, after another export deleted the last
claim to the number.

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
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

from kfp_distributed.components.model_versions.versions import is_unfinished
from kfp_distributed.storage.errors import KeyNotFound, StorageError
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
        task: ID of the task that exports; "" if a second attempt of it cannot be told from another task.
        renewed_at: Unix seconds from which the lease counts.
    """

    model_name: str
    version: int
    name: str = field(default_factory=lambda: f"{int(time.time())}-{uuid.uuid4().hex}")
    task: str = ""
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

    @property
    def record(self) -> str:
        """Key of the record that has the number of the version that the task exports."""
        return task_record(self.model_name, self.task)

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


def task_key(uri: str) -> str:
    """Return the ID of a task under which its record is stored, from the address of the task's outputs."""
    return sha256(uri.encode()).hexdigest()[:32]


def task_record(model_name: str, task: str) -> str:
    """Return the key of the object that has the number of the version that a task exports."""
    return f"{CLAIMS}/{model_name}/tasks/{task}"


@contextmanager
def hold(store: Store, claim: Claim, source_run: str) -> Iterator[Literal["free", "claimed", "exists"]]:
    """Claim a number. At the end, delete the claim and the objects under the number unless they are a complete version.

    The objects that a killed export left under the number are deleted too. While the number is held, and after it
    became a version, the record of the task has the number.

    Args:
        store: Store to export to.
        claim: The claim.
        source_run: ID of the run that exports, for people who look at the claim.

    Yields:
        "free", "claimed" if another export has the number or may have it, or "exists" if there is a version with it.

    Raises:
        StorageError: The store refuses a request or does not answer.
        LeaseLost: Half of the lease was over before the number was held.
    """
    state: Literal["free", "claimed", "exists"] = "claimed"
    store.write(f"{claim.folder}claim", f"{source_run}\n{claim.task}".strip().encode())
    try:
        names = store.children(claim.siblings.rstrip("/"))
        others = _other_claims(store, claim, names)
        if claim.folder.removeprefix(claim.siblings) in names and all(age > LEASE_SECONDS for age in others.values()):
            claim.check_time()  # Others may have taken the number since this claim was written.
            # Look for a version after the claims: an export that has just finished has deleted its claim.
            is_used = _clear(store, claim, others) if others else store.has_objects(claim.target)
            for prefix in others:
                store.delete(_keys_below(store, prefix))
            state = "exists" if is_used else "free"
        if state == "free" and claim.task:
            store.write(claim.record, str(claim.version).encode())
        yield state
    finally:
        try:
            if state == "free":
                claim.check_time()  # Without the lease, the objects may belong to another export.
                _clear(store, claim, [claim.folder])
            store.delete(_keys_below(store, claim.folder))
        except StorageError as error:
            print(f"{claim.folder} stays until a later export of {claim.model_name} deletes it: {error}", flush=True)


def clear_dead(store: Store, model_name: str) -> None:
    """Delete the claims that killed exports of a model left, and their files that did not become a version."""
    for folder in store.children(f"{CLAIMS}/{model_name}"):
        if not re.fullmatch("[1-9][0-9]*/", folder):
            continue
        claim = Claim(model_name, int(folder[:-1]))
        names = store.children(claim.siblings.rstrip("/"))
        if any(age > LEASE_SECONDS for age in _other_claims(store, claim, names).values()):
            with hold(store, claim, "deletes the files of a killed export"):
                pass


def _other_claims(store: Store, claim: Claim, names: Iterable[str]) -> dict[str, float]:
    """Return the ages of the other claims to a number, by prefix: seconds since the latest renewal.

    The age of what is not a claim is 0. A folder without objects is a claim that was deleted, or one whose object is
    not written yet. The owner of the latter lists the claims later and sees this one.

    Args:
        store: Store to export to.
        claim: A claim to the number.
        names: Names of all folders of claims to the number.
    """
    ages, siblings = {}, claim.siblings
    for name in names:
        if siblings + name == claim.folder or not store.has_objects(siblings + name):
            continue
        match = re.fullmatch("([0-9]+)-.*/", name)
        age = time.time() - int(match[1]) if match else 0.0
        if age > LEASE_SECONDS:  # Otherwise it lives without renewals.
            renewals = [int(moment) for moment in store.children(f"{siblings}{name}renewed") if moment.isdecimal()]
            age = time.time() - max((int(match[1]) if match else 0, *renewals))
        ages[siblings + name] = age
    return ages


def _clear(store: Store, claim: Claim, claims: Iterable[str]) -> bool:
    """Delete the objects under a number if a failed export left them; return whether they are a version instead.

    Args:
        store: Store to export to.
        claim: A claim to the number.
        claims: Prefixes of the claims whose exports have ended.
    """
    if not is_unfinished(store, claim.target):
        return True
    store.delete(_keys_below(store, claim.target))
    for prefix in claims:
        with suppress(KeyNotFound):
            _, _, task = store.read(f"{prefix}claim").decode().partition("\n")
            record = task_record(claim.model_name, task)
            # A second attempt of the task may have exported under another number.
            if task and store.read(record) == str(claim.version).encode():
                store.delete([record])
    return False


def _keys_below(store: Store, prefix: str) -> list[str]:
    """Return the keys that begin with a prefix."""
    return [entry.key for entry in store.list(prefix)]
