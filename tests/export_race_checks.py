"""Checks of exports that race or are killed, for any S3 server that the environment names."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest
from kfp_distributed.storage.opener import open_store

_PROGRAM = Path(__file__).parent / "export_races.py"
_COUNT = 10
_KILLS = 50
_DELETIONS = 20
_SEED = 20261126
_MODEL_NAME = "raced"


TWO_SERVED = ("saved_model.pb", "model.onnx")


def store_model(folder, bucket, files=TWO_SERVED):
    """Store a model, by default with two files that servers load, and return its address."""
    model = folder / "model"
    model.mkdir()
    for name in (*files, *(f"part{number:02}" for number in range(20))):
        (model / name).write_bytes(os.urandom(2000))
    (model / MODEL_MANIFEST).write_text(ModelManifest(files=describe_folder(model)).to_json())
    uri = f"s3://{bucket}/artifacts/model"
    open_store(uri).upload_folder(model)
    return uri


def _run(what, uri, bucket, count):
    ran = subprocess.run(
        [sys.executable, str(_PROGRAM), what, uri, bucket, _MODEL_NAME, str(count), str(_SEED)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(ran.stdout.splitlines()[-1])


def check_a_race(uri, bucket):
    ran = _run("race", uri, bucket, _COUNT)
    versions = [result.get("version") for result in ran["results"]]
    assert None not in versions, ran
    assert len(set(versions)) == _COUNT, ran
    assert (ran["states"], ran["leftovers"]) == ({"complete": _COUNT}, []), ran


def check_a_race_for_one_version(uri, bucket):
    ran = _run("race-version", uri, bucket, _COUNT)
    won = [result for result in ran["results"] if "version" in result]
    lost = [result["error"] for result in ran["results"] if "error" in result]
    assert won == [{"version": 3}], ran
    assert all(re.search(r"raced/3 (exists already|is being exported)", error) for error in lost), lost
    assert (ran["states"], ran["leftovers"]) == ({"complete": 1}, [])


def check_kills(uri, bucket):
    ran = _run("kills", uri, bucket, _KILLS)
    assert ran["leftovers"] == []
    assert sum(ran["seen"].values()) == _KILLS
    # The moments were spread over the whole export.
    assert {"claim", "partial", "complete"} <= ran["seen"].keys(), ran


def check_killed_deletions(uri, bucket):
    ran = _run("deletions", uri, bucket, _DELETIONS)
    assert sum(ran["seen"].values()) == _DELETIONS
    assert {"complete", "deleted"} <= ran["seen"].keys(), ran
    assert ran["states"] == {"complete": ran["seen"]["complete"] + 1}, ran
