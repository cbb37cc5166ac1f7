"""Python runs this first in a replica. A trainer asks after each step whether a replica must end, and is held there."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import SupportsFloat

if "KFP_DISTRIBUTED_JOB" in os.environ:
    from kfp_distributed.storage import open_store
    from kfp_distributed.trainers import sync
    from kfp_distributed.trainers.runtime.checkpoints.folder_uploads import flush
    from kfp_distributed.trainers.runtime.job_description import JobDescription
    from kfp_distributed.trainers.runtime.lifecycle.termination import Termination

    released = Path(os.environ["TESTS_HELD_UNTIL"])
    held = released.with_name("held")
    leading: list[str] = []
    create, ask, record = Termination.__init__, Termination.is_ending, sync.record_epoch
    questions = 0

    def initialize(self: Termination, job: JobDescription, replica: str, leads: bool, is_needed: bool = True) -> None:
        create(self, job, replica, leads, is_needed)
        if leads:
            leading.append(job.metrics_uri)

    def is_ending(self: Termination) -> bool:
        global questions
        questions += 1
        ends = ask(self)
        if questions == int(os.environ["TESTS_HELD_QUESTION"]) and leading and not held.exists():
            flush()
            while not open_store(leading[0]).exists("notices/leader"):
                time.sleep(0.01)
            held.touch()
            print(os.environ["TESTS_HELD_LINE"], flush=True)
            while not (ends := ask(self)) and not released.exists():
                time.sleep(0.02)
        return ends

    Termination.__init__, Termination.is_ending = initialize, is_ending  # type: ignore[method-assign]

    def record_epoch(file: Path, replica: str, epoch: int, epochs: int, metrics: Mapping[str, SupportsFloat]) -> None:
        record(file, replica, epoch, epochs, metrics)
        if epoch == int(os.environ["TESTS_HELD_EPOCH"]) and not held.exists():
            flush()
            held.touch()
            print(os.environ["TESTS_HELD_LINE"], flush=True)
            while not released.exists():
                time.sleep(0.02)

    sync.record_epoch = record_epoch
