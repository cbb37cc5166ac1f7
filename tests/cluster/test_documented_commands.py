"""The commands of the documentation that are marked `<!-- test: cluster -->` run on the cluster."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from code_blocks import PAGES, ROOT, CodeBlock, read_blocks

from kfp_distributed.cli.main import main
from kfp_distributed.storage import credentials_from_environment, open_store

pytestmark = pytest.mark.cluster


def marked_blocks(page: str) -> list[CodeBlock]:
    return [block for block in read_blocks((ROOT / page).read_text("utf-8")) if block.mark == "cluster"]


@pytest.fixture
def installation(page, api, store_environment):
    """What an installation of Kubeflow Pipelines has: the account of its steps, and the bucket mlpipeline.

    Only for a page that installs, because the tests of other pages may run in other processes at the same time.
    """
    if not any("kfp-distributed install" in block.code for block in marked_blocks(page)):
        yield
        return
    account = {"metadata": {"name": "pipeline-runner"}}
    is_there = account["metadata"]["name"] in {
        item.metadata.name for item in api.list_namespaced_service_account("kubeflow").items
    }
    if not is_there:
        api.create_namespaced_service_account("kubeflow", account)
    open_store("s3://mlpipeline", credentials_from_environment(store_environment)).make_bucket()
    yield
    CliRunner().invoke(main, ["uninstall", "--namespace", "kubeflow"])
    if not is_there:
        api.delete_namespaced_service_account("pipeline-runner", "kubeflow")


@pytest.mark.usefixtures("installation")
@pytest.mark.parametrize("page", [page for page in PAGES if marked_blocks(page)])
def test_commands_that_are_marked_run_on_a_cluster(page, store_endpoint):
    """The store of this cluster may be outside of it. Then no port is forwarded: see test_port_forward.py."""
    folder = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "AWS_ENDPOINT_URL": store_endpoint,
    }
    for block in marked_blocks(page):
        code = block.code.replace(".venv/bin/kfp-distributed", f"{folder}/kfp-distributed")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", code],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
