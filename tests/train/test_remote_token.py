"""The expiry of a remote cluster's token, the command that renews it, and its renewal while a step runs."""

import base64
import json
import subprocess
import threading

import pytest
from step_lines import brief_lines

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.train.run.runners.kubernetes.connect import remote_token
from kfp_distributed.components.train.run.runners.kubernetes.connect.remote_token import (
    RenewableToken,
    TokenClaims,
    expiry_fault,
    expiry_warning,
    read_claims,
    renewal_command,
)
from kfp_distributed.components.train.tell.log_format import log

NOW = 1_800_000_000.0
DAY = 24 * 3600.0
BOUND = {"namespace": "training", "serviceaccount": {"name": "remote", "uid": "1"}, "secret": {"name": "tokens"}}


def jwt(claims):
    parts = (json.dumps(part).encode() for part in ({"alg": "RS256"}, claims))
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), "hush-signature"])


def expires_in(seconds, **claims):
    return jwt({"exp": NOW + seconds, "kubernetes.io": BOUND, **claims})


@pytest.mark.parametrize(
    ("token", "claims"),
    [
        (expires_in(60), TokenClaims(NOW + 60, "training", "remote", "tokens")),
        (expires_in(0.5, sub="ü" * 50), TokenClaims(NOW + 0.5, "training", "remote", "tokens")),
        (jwt({"kubernetes.io": {"namespace": "training"}}), TokenClaims(None, "training")),
        (jwt({"exp": 1, "kubernetes.io": {"namespace": "$(hush)", "secret": ["x"]}}), TokenClaims()),
        (jwt({"exp": 1, "kubernetes.io": {"namespace": "$(hush)", "serviceaccount": {"name": 1}}}), TokenClaims(1.0)),
        (jwt(["exp"]), TokenClaims()),
        (jwt({"exp": "soon"}), TokenClaims()),
        ("a.!!!.c", TokenClaims()),
        ("kubeconfig-u-abc:hush", TokenClaims()),
    ],
)
def test_the_claims_of_a_token(token, claims):
    assert read_claims(token) == claims


def test_the_command_that_renews_a_token_patches_its_secret(tmp_path):
    """It runs here with a kubectl that records its arguments and input."""
    command = renewal_command("pipelines/gpu", read_claims(expires_in(1)))
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\n'
        f'case "$*" in *create*) echo new-token;; *) cat "$8" >{tmp_path}/patch;; esac\n'.replace("$8", "/dev/stdin")
    )
    kubectl.chmod(0o755)
    subprocess.run(["sh", "-euc", command], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True)
    assert sorted((tmp_path / "calls").read_text().splitlines()) == [
        "--context REMOTE create token remote --namespace training --duration 720h --bound-object-kind Secret "
        "--bound-object-name tokens",
        "patch secret gpu --namespace pipelines --patch-file /dev/stdin",
    ]
    assert json.loads((tmp_path / "patch").read_text()) == {"stringData": {"token": "new-token"}}


@pytest.mark.parametrize(("seconds", "expired"), [(-1, True), (0, True), (1, False)])
def test_an_expired_token_is_a_fault_with_the_command_that_renews_it(seconds, expired):
    token = expires_in(seconds)
    fault = expiry_fault("pipelines/gpu", token, NOW)
    assert bool(fault) == expired
    if expired:
        assert "pipelines/gpu" in fault
        assert fault.endswith("; renew it: " + renewal_command("pipelines/gpu", read_claims(token)))
        assert "\n" not in fault
        assert "hush" not in fault


@pytest.mark.parametrize(
    ("seconds", "total_timeout", "warned"),
    [
        (7 * DAY, None, True),
        (7 * DAY + 1, None, False),
        (3600, 3600, True),
        (3601, 3600, False),
        (30 * DAY, 31 * DAY, True),
    ],
)
def test_a_token_that_may_expire_during_the_training_is_warned_of(seconds, total_timeout, warned):
    token = expires_in(seconds)
    warning = expiry_warning("pipelines/gpu", token, total_timeout, NOW)
    assert bool(warning) == warned
    if warned:
        assert warning.endswith(" Renew it: " + renewal_command("pipelines/gpu", read_claims(token)))
        assert "\n" not in warning


def test_a_token_without_an_expiry_is_neither_refused_nor_warned_of():
    for token in ("opaque", jwt({"kubernetes.io": BOUND}), jwt({"exp": 1e300})):
        assert (expiry_fault("a/b", token, NOW), expiry_warning("a/b", token, None, NOW)) == ("", "")


@pytest.fixture
def secret(monkeypatch):
    """The Secret with a token: its values in order; the last one stays. Counts the reads."""
    monkeypatch.setattr(remote_token, "READ_INTERVAL_SECONDS", 0.0)
    return Secret()


class Secret:
    def __init__(self):
        self.values, self.reads = ["first"], 0

    def read(self):
        self.reads += 1
        value = self.values[0] if len(self.values) == 1 else self.values.pop(0)
        if isinstance(value, Exception):
            raise value
        return value


def test_a_refused_token_is_replaced_once_the_secret_has_another_one(secret, capsys):
    token = RenewableToken("pipelines/gpu", "first", secret.read, log)
    assert [token.renew("first"), token.current, secret.reads] == [False, "first", 1]
    # An error that lasts is logged once.
    secret.values = [ValueError("malformed"), ValueError("malformed"), ClusterError(0, "away"), "second"]
    assert [token.renew("first") for _ in range(4)] == [False, False, False, True]
    assert (token.current, secret.reads) == ("second", 5)
    # A request that was sent with the first token is repeated without another read.
    assert [token.renew("first"), secret.reads] == [True, 5]
    assert [token.renew("second"), secret.reads] == [False, 6]
    text = capsys.readouterr().out
    assert len(brief_lines(text)) == 3
    assert "second" not in text


def test_watches_that_are_refused_together_read_the_secret_once(monkeypatch, secret):
    monkeypatch.setattr(remote_token, "READ_INTERVAL_SECONDS", 60.0)
    token = RenewableToken("pipelines/gpu", "first", secret.read, log)
    threads = [threading.Thread(target=token.renew, args=("first",)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert secret.reads == 1
