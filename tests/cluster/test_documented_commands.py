"""The commands of the documentation that are marked `<!-- test: cluster -->` run on the cluster."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from code_blocks import PAGES, ROOT, CodeBlock, read_blocks

pytestmark = pytest.mark.cluster


def marked_blocks(page: str) -> list[CodeBlock]:
    return [block for block in read_blocks((ROOT / page).read_text("utf-8")) if block.mark == "cluster"]


@pytest.mark.parametrize("page", [page for page in PAGES if marked_blocks(page)])
def test_commands_that_are_marked_run_on_a_cluster(page):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for block in marked_blocks(page):
        subprocess.run(["bash", "-euo", "pipefail", "-c", block.code], env=environment, check=True, timeout=400)
