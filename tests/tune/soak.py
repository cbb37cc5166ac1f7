"""Searches with random faults: `python tests/tune/soak.py [STUDIES]`. It prints a line for each search.

A fault kills the step, ends it as KFP does, or kills the process of a trial or a replica. The step is then started
again, as by a retry. After all, no trial may be lost, fail or lack an epoch, no value may differ from those of a search
without faults, no process may be left, and the model must be that of the best trial.
"""

import json
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pyarrow as pa
import samples
from tune.search_step import FOLDER, Step

from kfp_distributed.components.tune.search_space import Range
from kfp_distributed.components.tune.study import Search, Study
from kfp_distributed.storage.dataset import Column

TRIALS, EPOCHS, MOST_FAULTS = 8, 6, 6
MARKER = "KFP_DISTRIBUTED_SOAK"


def family(marker):
    """Return the processes of a search, also those that have lost their parents."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARKER) == marker and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def disturb(step_process, marker, draw):
    """Cause a fault, and return its name."""
    kinds = {"step killed": signal.SIGKILL, "step ended": signal.SIGTERM, "trial killed": 0, "replica killed": 0}
    kind = draw.choice([*kinds])
    if kinds[kind]:
        step_process.send_signal(kinds[kind])
        return kind
    part = "components.tune.trial" if kind == "trial killed" else "runtime.entry"
    victims = []
    for process in family(marker):
        with suppress(psutil.Error):
            victims += [process] if part in " ".join(process.cmdline()) else []
    if not victims:
        return f"no {kind}"
    with suppress(psutil.Error):
        draw.choice(victims).kill()
    return kind


def undisturbed(seed):
    """Return the rates of the trials of a search without faults."""
    space = {"rate": Range(0.0, 0.8, is_whole=False)}
    study = Study(Memory(), Search("minimize", "random", seed=seed), space)
    return [study.next_trial().values["rate"] for _ in range(TRIALS)]


class Memory(dict):
    """A store."""

    exists, read, write = dict.__contains__, dict.__getitem__, dict.__setitem__


def copy_lines(lines, output):
    for line in lines:
        output.write(line.encode())


def search(folder, number):
    """Run a search with faults; return its faults, the number of its attempts, and what is wrong."""
    draw, marker = random.Random(number), f"{folder}-{number}"
    step, faults, wrong = Step(folder / "train", folder / str(number) / FOLDER), [], []
    given = {
        "variables": {MARKER: marker},
        "train_parameters": {"slow": True, "epochs": EPOCHS},
        "search_space": {"rate": {"low": 0.0, "high": 0.8}},
        "search": {"sampler": "random", "seed": number, "trial_failures": 0},
        "trials": TRIALS,
        "parallel_trials": 4,
    }
    attempts = 0
    while True:
        attempts += 1
        process = step.start(**given)
        output = (folder / f"{number}-{attempts}.log").open("wb")
        until = time.monotonic() + draw.uniform(1, 12)
        with output:
            reader = threading.Thread(target=copy_lines, args=(process.stdout, output))
            reader.start()
            while process.poll() is None:
                if len(faults) < MOST_FAULTS and time.monotonic() > until:
                    faults.append(disturb(process, marker, draw))
                    until = time.monotonic() + draw.uniform(1, 12)
                time.sleep(0.05)
            reader.join()
        text = (folder / f"{number}-{attempts}.log").read_text(errors="replace")
        if process.returncode == 0 or attempts > 2 * MOST_FAULTS:
            break
        # A signal may come before the step handles it, or after its trials have ended.
        if process.returncode not in (-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM):
            wrong.append(f"attempt {attempts} ended with {process.returncode}: {text[-600:]}")
            break
    deadline = time.monotonic() + 30
    while (left := family(marker)) and time.monotonic() < deadline:
        time.sleep(0.2)
    wrong += [f"left: {process}" for process in left]
    trials = step.trials()
    wrong += [f"trial {trial.number} is {trial.state.name}" for trial in trials if trial.state.name != "COMPLETE"]
    wrong += [
        f"trial {trial.number} has epochs {sorted(trial.intermediate_values)}"
        for trial in trials
        if sorted(trial.intermediate_values) != [*range(1, EPOCHS + 1)]
    ]
    values = [trial.params["rate"] for trial in trials]
    if values != (expected := undisturbed(number)):
        wrong.append(f"the rates are {values}, not {expected}")
    model = json.loads((step.folder / "model" / "model.json").read_text()) if process.returncode == 0 else None
    if model and abs(model["metrics"]["loss"] - (min(values) + 1 / EPOCHS)) > 1e-9:
        wrong.append(f"the model has {model['metrics']}, the lowest rate is {min(values)}")
    return faults, attempts, wrong


def main():
    """Run the searches; exit with 1 if anything is wrong."""
    studies, failed = int(sys.argv[1]) if len(sys.argv) > 1 else 50, 0
    with TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        column, rows = Column("x", "number", "float32", (), (), 3.5, 2.3), pa.array(np.arange(8, dtype=np.float32))
        samples.write_dataset(folder / "train", [column], [rows], np.arange(8) % 2, ["a", "b"], [4, 4])
        for number in range(studies):
            begin = time.monotonic()
            faults, attempts, wrong = search(folder, number)
            failed += bool(wrong)
            seconds = f"{time.monotonic() - begin:.0f} s"
            print(f"{number}: {attempts} attempts, {seconds}, {', '.join(faults)}; {wrong or 'right'}", flush=True)
    print(f"{studies} searches, {failed} wrong")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
