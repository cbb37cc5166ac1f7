"""Who exports which version: one object in the store for each export that is under way.

Object stores have no locks, and not all can create an object only where there is none. So an export first writes a
claim of its own, under a name that nobody else uses, and looks for others' then. Of two at a time the one that looks
last sees the other's claim, whichever wrote first; who sees a living one withdraws. So two never go on with one
number, though both may withdraw and try again. All this needs of a store is that a list shows what was written.

A killed export leaves its claim. Claims are dead after LEASE_SECONDS; an export stops itself after half of that, which
leaves the other half to clocks that differ and to requests that are under way.
"""

import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.model import FORMATS
from kfp_distributed.storage.store import Store

CLAIMS = ".exports"
LEASE_SECONDS = 7200


@dataclass(frozen=True)
class Claim:
    """One export's hold on a version's number.

    Attributes:
        model_name: The model.
        version: The number.
        name: The claim's own name: when it was made, in Unix seconds, and what makes it unique.
    """

    model_name: str
    version: int
    name: str = field(default_factory=lambda: f"{time.time():.0f}-{uuid.uuid4().hex}")

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
        """Checks that the export may still write.

        Raises:
            TimeoutError: It may not.
        """
        if _age(self.folder) > LEASE_SECONDS / 2:
            raise TimeoutError(f"the export to {self.target} took more than {LEASE_SECONDS // 2} s: export again.")


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
        if all(_age(key) > LEASE_SECONDS for key in others):
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
        except (StorageError, TimeoutError) as error:
            print(f"{mine.folder} stays until a later export of {mine.model_name} deletes it: {error}", flush=True)


def clear_dead(store: Store, model_name: str) -> None:
    """Deletes what killed exports of a model left: their claims, and their files where they did not get visible."""
    keys = keys_below(store, f"{CLAIMS}/{model_name}/")
    for version in {int(key.split("/")[2]) for key in keys if _age(key) > LEASE_SECONDS}:
        with hold(store, Claim(model_name, version), "deletes what a killed export left"):
            pass


def _age(key: str) -> float:
    """Seconds since a claim was made; 0 for a key that is none of ours."""
    made = re.match(r"[^/]+/[^/]+/[0-9]+/([0-9]+)-", key)
    return time.time() - int(made[1]) if made else 0


def _clear(store: Store, mine: Claim) -> bool:
    """Deletes what lies under a number, unless it is a whole version; returns whether it is."""
    whole = any(store.exists(mine.target + file) for file in FORMATS)
    if not whole:
        store.delete(keys_below(store, mine.target))
    return whole


def keys_below(store: Store, prefix: str) -> list[str]:
    """Lists keys."""
    return [entry.key for entry in store.list(prefix)]
