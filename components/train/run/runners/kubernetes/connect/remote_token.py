"""Token of an account of another cluster: when it expires, how to renew it, and its renewal while a step runs."""

import base64
import json
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.train.run.facts import Log

SHORT_LIFE_SECONDS = 7 * 24 * 3600.0
"""A token that expires earlier is warned of if there is no total_timeout. Trainings of a week are common."""

READ_INTERVAL_SECONDS = 1.0
"""Minimum seconds between two reads of the Secret. All watches of a job are refused at the same time."""

_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"


class TokenClaims(NamedTuple):
    """What a token says of itself. Only the API server can verify it.

    Attributes:
        expires: Time of its expiry in seconds since 1970; None if it does not expire or is no JWT.
        namespace: Namespace of its service account; "" if unknown.
        account: Name of its service account; "" if unknown.
        secret: Name of the Secret that it is bound to; "" for none.
    """

    expires: float | None = None
    namespace: str = ""
    account: str = ""
    secret: str = ""


def read_claims(token: str) -> TokenClaims:
    """Return the claims of a token; empty ones for a token that is no JWT."""
    with suppress(ValueError, AttributeError, TypeError):
        payload = token.split(".")[1] if token.count(".") == 2 else ""
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        details = claims.get("kubernetes.io") or {}
        names = (
            details.get("namespace"),
            *((details.get(kind) or {}).get("name") for kind in ("serviceaccount", "secret")),
        )
        expires = claims.get("exp")
        return TokenClaims(
            None if expires is None else float(expires),
            *(name if isinstance(name, str) and re.fullmatch(_NAME, name) else "" for name in names),
        )
    return TokenClaims()


def renewal_command(secret: str, claims: TokenClaims) -> str:
    """Return the shell command that renews a token. It shows the token to no other process.

    Args:
        secret: "namespace/name" of the Secret with the token.
        claims: Claims of the old token.
    """
    namespace, _, name = secret.partition("/")
    bound = f" --bound-object-kind Secret --bound-object-name {claims.secret}" if claims.secret else ""
    return (
        """printf '{"stringData":{"token":"%s"}}' "$(kubectl --context REMOTE create token """
        f'{claims.account or "ACCOUNT"} --namespace {claims.namespace or "NAMESPACE"} --duration 720h{bound})" | '
        f"kubectl patch secret {name} --namespace {namespace} --patch-file /dev/stdin"
    )


def expiry_fault(secret: str, token: str, now: float) -> str:
    """Return why a token that has expired cannot be used, as a sentence with the command that renews it; else ""."""
    claims = read_claims(token)
    if claims.expires is None or claims.expires > now:
        return ""
    return f"the token of the Secret {secret} expired at {_text(claims.expires)}; renew it: " + renewal_command(
        secret, claims
    )


def expiry_warning(secret: str, token: str, total_timeout: float | None, now: float) -> str:
    """Return a warning if a token may expire before the training ends; else "".

    Args:
        secret: "namespace/name" of the Secret with the token.
        token: The token.
        total_timeout: Maximum seconds of the training. None, for unlimited, counts as 7 days.
        now: The time in seconds since 1970.
    """
    claims = read_claims(token)
    if claims.expires is None or claims.expires > now + (total_timeout or SHORT_LIFE_SECONDS):
        return ""
    limit = f"total_timeout = {total_timeout:g} s" if total_timeout else "there is no total_timeout"
    return (
        f"the token of the Secret {secret} expires at {_text(claims.expires)}, which may be before the training ends "
        f"({limit}); the step uses a new token as soon as the Secret has one. Renew it: "
        + renewal_command(secret, claims)
    )


class RenewableToken:
    """Token that is read again when the API server refuses it. Thread-safe.

    Attributes:
        current: The token.
    """

    def __init__(self, secret: str, token: str, read: Callable[[], str], log: Log) -> None:
        """Create the object without reading the Secret.

        Args:
            secret: "namespace/name" of the Secret, for the log.
            token: Its token.
            read: Reads the token of the Secret. May raise ValueError or ClusterError.
            log: Receives a line of the step's log.
        """
        self.current = token
        self._secret = secret
        self._read, self._log = read, log
        self._next_read = 0.0
        self._logged_error = ""
        # Reentrant, because a signal may interrupt a renewal, and the cancellation of the step sends requests.
        self._lock = threading.RLock()

    def renew(self, refused: str) -> bool:
        """Return whether there is another token than the refused one. Reads the Secret if necessary."""
        with self._lock:
            if self.current == refused and time.monotonic() >= self._next_read:
                self._read_again()
                self._next_read = time.monotonic() + READ_INTERVAL_SECONDS
            return self.current != refused

    def _read_again(self) -> None:
        try:
            token = self._read()
        except (ValueError, ClusterError) as error:
            if str(error) != self._logged_error:  # Each request of the step fails in the same way.
                self._logged_error = str(error)
                self._log("WARNING", f"the API server refused the token; cannot use the Secret {self._secret}: {error}")
            return
        if token != self.current:
            expires = read_claims(token).expires
            until = f", which expires at {_text(expires)}" if expires else ""
            self._log("INFO", f"the API server refused the token; continues with the new one of {self._secret}{until}")
            self.current = token

    def fault(self) -> str:
        """Return the sentence of `expiry_fault`."""
        return expiry_fault(self._secret, self.current, time.time())

    def warning(self, total_timeout: float | None) -> str:
        """Return the text of `expiry_warning`."""
        return expiry_warning(self._secret, self.current, total_timeout, time.time())


def _text(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):  # Beyond the years that a date can have.
        return f"{seconds:g} s after 1970"
