"""Makes the screenshots of the documentation from real runs: `python tests/browser/screenshots.py docs/images`.

It runs the demo, and a training in which a worker is killed once and then fails. Requires playwright and chromium.
"""

import argparse
import inspect
import shutil
import subprocess
import sys
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from kfp_distributed.components.train.step import run_step

MAX_BYTES = 150_000
"""Size of a screenshot. Colors are reduced until it fits."""

PAGES = {"data": "data.html", "training": "training.html", "evaluation": "report.html"}
"""Files that the demo writes, by the name of the screenshot."""

WIDTH, MAX_HEIGHT = 1200, 1500


class Artifact(NamedTuple):
    """An artifact of KFP on the disk."""

    path: str
    uri: str


def fit(train_dir: str, model_dir: str, metrics_dir: str, marker: str, epochs: int = 60) -> None:
    """Train, be killed once as worker 1, and fail there after the restart."""
    import json
    import math
    import os
    import signal
    import time
    from pathlib import Path
    from random import random

    from kfp_distributed.trainers.sync import record_epoch

    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    is_first_start = not Path(marker).exists()
    memory = []
    for epoch in range(1, epochs + 1):
        memory.append(bytearray(int(4e6)))
        time.sleep(0.7)  # An epoch takes long enough for several samples in a training.
        loss = 2.2 * math.exp(-epoch / 18) + 0.05 * random()
        metrics = {"loss": loss, "val_loss": loss + 0.1 + 0.3 * random() * epoch / epochs}
        if index == 0:
            record_epoch(Path(metrics_dir, "training.json"), "worker-0", epoch, epochs, metrics)
        else:
            print(f"epoch {epoch}/{epochs} loss={loss:.4f}", flush=True)
        if index == 1 and is_first_start and epoch == 22:
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 1 and not is_first_start and epoch == 30:
            raise ValueError("the batch of shard 5 has 63 rows, and the model was built for 64")


def run_demo(folder: Path) -> dict[str, Path]:
    """Run the demo; return its pages by the name of the screenshot."""
    subprocess.run(
        [sys.executable, "-m", "kfp_distributed.pipelines.demo", "--folder", str(folder), "--epochs", "60"], check=True
    )
    return {name: next(folder.rglob(file)) for name, file in PAGES.items()}


def run_failed_training(folder: Path, dataset: Path) -> Path:
    """Run a training that fails; return its report."""
    report = folder / "failed.html"
    with suppress(SystemExit):
        run_step(
            train_dataset=Artifact(str(dataset), str(dataset)),
            validation_dataset=None,
            model=Artifact(str(folder / "model"), str(folder / "model")),
            metrics=None,
            report=Artifact(str(report), str(report)),
            runner="local",
            train_specification={"function": "fit", "source": inspect.getsource(fit)},
            train_parameters={"marker": str(folder / "started")},
            distribution_specification={
                "distribution_type": "TF",
                "number_of_workers": 3,
                "number_of_parameter_servers": 0,
                "restart_limit": 1,
            },
        )
    return report


def take(browser: Browser, page_file: Path, scheme: str) -> Image.Image:
    """Take a screenshot of the upper part of a page."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": WIDTH, "height": 900})
    page = context.new_page()
    page.goto(page_file.as_uri())
    page.wait_for_selector("body.drawn")
    page.wait_for_timeout(500)
    height = min(MAX_HEIGHT, page.evaluate("document.documentElement.scrollHeight"))
    png = page.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
    context.close()
    return Image.open(BytesIO(png)).convert("RGB")


def save(image: Image.Image, file: Path) -> None:
    """Save an image with as many colors as `MAX_BYTES` allows."""
    for colors in (256, 128, 64, 32, 16):
        image.quantize(colors, dither=Image.Dither.NONE).save(file, optimize=True)
        if file.stat().st_size < MAX_BYTES:
            return
    raise SystemExit(f"{file} has {file.stat().st_size} bytes, allowed are {MAX_BYTES}: lower MAX_HEIGHT.")


def main() -> None:
    """Run the trainings and write the screenshots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of the screenshots, created if missing")
    parser.add_argument("--runs", type=Path, help="folder to keep the runs in [a temporary folder]")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as temporary:
        runs = (options.runs or Path(temporary)).resolve()
        pages = run_demo(runs / "demo")
        dataset = pages["data"].parent / "prepare-data" / "train_dataset"
        # The names of the folders are those of the run and of the task.
        (runs / "digits" / "train").mkdir(parents=True)
        pages["failed-training"] = run_failed_training(runs / "digits" / "train", dataset)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for name, page in pages.items():
                for scheme in ("light", "dark"):
                    save(take(browser, page, scheme), options.folder / f"{name}-{scheme}.png")
            browser.close()


if __name__ == "__main__":
    main()
