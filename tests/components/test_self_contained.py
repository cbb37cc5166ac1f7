"""Each compiled step, run as KFP's launcher runs it, where nothing of this project is installed."""

import json
import os
import subprocess

import pytest
from compiled import STEPS, Run, packages, whole_job
from environments import environment

from kfp_distributed.storage import credentials_from_environment, embedded_object_store, open_store


@pytest.fixture(scope="module")
def clean_python():
    """An environment with most of what the steps ask pip for, so that their own pip has little left to do."""
    wanted = sorted({package for step in STEPS for package in packages(step)})
    python = environment("steps", wanted)
    found = subprocess.run(
        [python, "-c", "import kfp_distributed.storage"], capture_output=True, text=True, check=False
    )
    assert "No module named 'kfp_distributed'" in found.stderr
    return python


def test_every_step_runs_from_its_yaml_alone(clean_python, tmp_path):
    run = Run(str(tmp_path))
    pip = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTPS_"))}
    with embedded_object_store(tmp_path / "object-store") as store:
        variables = {
            "PATH": f"{clean_python.parent}:/usr/bin:/bin",
            "HOME": str(tmp_path),
            **pip,
            **store.environment(),
        }
        outputs = {}
        for step, command in whole_job(run).items():
            (tmp_path / step).mkdir()
            done = subprocess.run(
                command, env=variables, cwd=tmp_path / step, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
            text = run.output_file(step).read_text(encoding="utf-8")
            outputs[step] = json.loads(text).get("parameterValues", {})
            for secret in (store.access_key, store.secret_key):
                assert secret not in done.stdout + done.stderr + text
        exported = open_store("s3://models/digits", credentials_from_environment(store.environment()))
        keys = [entry.key for entry in exported.list()]
        manifest = json.loads(exported.read("1/export.json"))
    assert outputs["evaluate"]["accuracy"] > 0.9
    assert outputs["export_model"] == {"uri": "s3://models/digits/1", "version": 1}
    assert "1/saved_model.pb" in keys
    assert manifest["source_run"] == run.run_id
