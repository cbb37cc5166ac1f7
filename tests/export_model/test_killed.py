"""Exports that are killed by SIGKILL, as real processes against a real S3 server."""

import os
import re
import subprocess
import sys
import time

import psutil
import pytest

from kfp_distributed.components.model_versions.claims import Claim
from kfp_distributed.storage.files import list_files
from kfp_distributed.storage.opener import open_store

pytestmark = pytest.mark.takes(29)

# The pause keeps a fast export from ending before the test has seen that it is under way.
EXPORT = """
import sys, time
from itertools import count
from kfp import dsl
from kfp_distributed.components.export_model.export import run_export
from kfp_distributed.storage.object_stores.s3 import S3Store
folder, bucket, manifest = sys.argv[1:]
copy, copies = S3Store.copy, count(1)
def copy_and_pause(*arguments):
    copy(*arguments)
    if next(copies) == 20:
        time.sleep(600)
S3Store.copy = copy_and_pause
run_export(folder, folder, "digits", bucket, 0, {}, dsl.Artifact(uri=manifest))
"""


def keys_of(store):
    return {entry.key for entry in store.list()}


def is_on_its_way(keys):
    return sum("/files/" in key for key in keys) >= 5


def is_becoming_visible(keys):
    return sum(key.startswith("digits/1/") for key in keys) >= 5


@pytest.fixture(params=[is_on_its_way, is_becoming_visible])
def killed(request, bucket, make_model):
    """A store in which an export of version 1 was killed during the upload."""
    store = open_store(f"s3://{bucket}")
    store.make_bucket()
    model = make_model("killed", assets=300)
    process = subprocess.Popen(
        [sys.executable, "-c", EXPORT, str(model), bucket, "/root/killed-run/export-model/manifest"],
        env={**os.environ, "_KFP_RUNTIME": "true"},
        stdout=subprocess.DEVNULL,
    )
    try:
        while not request.param(keys_of(store)):
            assert process.poll() is None
            time.sleep(0.01)
        connections = {(c.raddr, c.laddr) for c in psutil.Process(process.pid).net_connections("tcp") if c.raddr}
    finally:
        process.kill()
        process.wait()
    # The server may still store what it has received. These are the same connections at its side.
    while connections & {
        (c.laddr, c.raddr) for c in psutil.net_connections("tcp") if c.status in ("ESTABLISHED", "CLOSE_WAIT")
    }:
        time.sleep(0.05)
    assert not store.exists("digits/1/saved_model.pb")
    return store


def expire(store):
    """Make the claim of the killed export old."""
    for key in keys_of(store):
        if key.startswith(".exports/digits/1/"):
            store.write(re.sub(r"/1/[0-9]+-", "/1/0-", key), store.read(key))
            store.delete([key])


def test_a_killed_export_blocks_its_number_for_a_while_and_then_leaves_nothing(killed, bucket, make_model, export):
    model = make_model()
    with pytest.raises(ValueError, match=r"/digits/1 is being exported: .* wait two hours or delete .exports/digits/1"):
        export(model, bucket, version=1)
    number = export(model, bucket).version
    assert number == 2
    expire(killed)
    assert export(model, bucket, version=1).version == 1
    names = list_files(model)
    assert {name: killed.read(f"digits/1/{name}") for name in names} == {
        name: (model / name).read_bytes() for name in names
    }
    assert keys_of(killed) == {f"digits/{number}/{name}" for number in (1, 2) for name in [*names, "export.json"]}


def test_a_number_is_free_after_what_the_error_advises(killed, bucket, make_model, export):
    model = make_model()
    with pytest.raises(ValueError, match="is being exported") as caught:
        export(model, bucket, version=1)
    claims, target = re.search(r"wait two hours or delete (\S+) and what it left in (\S+)$", str(caught.value)).groups()
    killed.delete([key for key in keys_of(killed) if key.startswith((claims, target))])
    assert export(model, bucket, version=1).version == 1


def test_the_next_export_deletes_the_leftovers_of_any_number(killed, bucket, make_model, export):
    expire(killed)
    export(make_model(), bucket, version=9)
    assert {tuple(key.split("/")[:2]) for key in keys_of(killed)} == {("digits", "9")}


def test_a_version_that_became_visible_just_before_the_kill_stays(bucket, make_model, export):
    export(make_model(), bucket)
    store = open_store(f"s3://{bucket}")
    before = keys_of(store)
    store.write(f"{Claim('digits', 1, '0-ab').folder}claim", b"killed-run")
    with pytest.raises(ValueError, match="exists already"):
        export(make_model("other"), bucket, version=1)
    assert keys_of(store) == before
