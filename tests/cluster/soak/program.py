"""The training of the soak: its source for the replicas, and the model that it must have without any fault."""

import hashlib
import inspect
from typing import Any

EPOCHS = 4
ROWS = 8
"""Rows of an epoch."""


def fit(
    model_dir: str,
    checkpoint_dir: str,
    metrics_dir: str,
    seed: int,
    epochs: int = 4,
    rows: int = 8,
    seconds: float = 0.5,
    padding: int = 0,
):
    """Train a chain of hashes: each row changes it, so that a row that is lost, repeated or swapped changes the model.

    Args:
        model_dir: Folder of the model.
        checkpoint_dir: Folder of the checkpoint, which is stored after each epoch.
        metrics_dir: Folder of the metrics.
        seed: Start of the chain.
        epochs: Number of epochs.
        rows: Number of rows of an epoch.
        seconds: Duration of a row.
        padding: Number of lines of 1,000 characters to print with each row.
    """
    import hashlib
    import json
    import os
    import signal
    import time
    import uuid
    from pathlib import Path

    from kfp_distributed.trainers.sync import record_epoch

    replica, start, number = os.environ["KFP_DISTRIBUTED_REPLICA"], uuid.uuid4().hex[:8], 0

    def say(text):
        nonlocal number
        print(f"line {start} {number} {text}", flush=True)
        number += 1

    def fail_if_asked():
        asked = Path("/tmp/soak-fault")
        if not asked.exists():
            return
        fault = asked.read_text()
        asked.unlink()
        say(f"fault {fault}")
        if fault == "out of memory":
            say(len(bytearray(4 * 2**30)))
        # The first process of a container ignores SIGKILL that it sends to itself.
        os.kill(os.getpid(), signal.SIGKILL)
        os._exit(128 + signal.SIGKILL)

    stored = Path(checkpoint_dir, "state.json")
    chain, past = json.loads(stored.read_text()) if stored.exists() else (str(seed), 0)
    say(f"starts after epoch {past}")
    for epoch in range(past + 1, epochs + 1):
        for row in range(1, rows + 1):
            fail_if_asked()
            chain = hashlib.sha256(f"{chain} {epoch} {row}".encode()).hexdigest()
            for _ in range(padding):
                say("x" * 1000)
            say(f"epoch {epoch} row {row}")
            time.sleep(seconds)
        stored.with_suffix(".new").write_text(json.dumps([chain, epoch]))
        stored.with_suffix(".new").rename(stored)
        record_epoch(Path(metrics_dir, "training.json"), replica, epoch, epochs, {"rows": rows})
    Path(model_dir, "weights").write_text(chain)
    say("end")


def specification(image: str) -> dict[str, Any]:
    """Return the train_specification for an image with the packages of the entry program."""
    return {"function": "fit", "source": inspect.getsource(fit), "image": image}


def expected_model(seed: int, epochs: int = EPOCHS, rows: int = ROWS) -> str:
    """Return the model of a training in which every row was used once and in order."""
    chain = str(seed)
    for epoch in range(1, epochs + 1):
        for row in range(1, rows + 1):
            chain = hashlib.sha256(f"{chain} {epoch} {row}".encode()).hexdigest()
    return chain
