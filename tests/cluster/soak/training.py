"""Runs one training of the soak and returns what was observed."""

import json
import time
from contextlib import suppress

from cluster.jobs import Step, left_behind
from cluster.soak.faults import Training, ended_steps
from cluster.soak.judge import Attempt, Observed
from cluster.soak.place import Place, open_proxies
from cluster.soak.plan import LOG_ROTATED, Plan
from cluster.soak.program import EPOCHS, ROWS, specification

from kfp_distributed.components.train.tell.stored_log import read_log
from kfp_distributed.components.train.tell.training_summary import SUMMARY, TrainingSummary
from kfp_distributed.storage.errors import KeyNotFound

_SECONDS = 420
"""Maximum seconds of a training, with two outages and three restarts on a busy machine."""

_PADDING = 420
"""Lines with each row of a training whose log is rotated, so that it prints 13 MB."""


def run_training(plan: Plan, place: Place, images: dict[str, str]) -> tuple[Observed, str]:
    """Run a training with its faults.

    Args:
        plan: The training.
        place: Where it runs.
        images: The image of each type of job.

    Returns:
        What was observed, and the logs of all attempts for a person.
    """
    with open_proxies(place) as proxies:
        started = time.time()
        training = Training(plan, place, proxies, _request(plan, place, images))
        try:
            has_ended = training.await_end(_SECONDS)
        finally:
            for step in training.steps:
                step.process.terminate()
            for step in training.steps:
                step.end()
        step = training.steps[0]
        left = tuple(left_behind(step, 90))
    folder = place.store(str(plan.number))
    model = None
    with suppress(KeyNotFound):
        model = folder.read("model/weights").decode()
    records, state = f"{plan.number}/checkpoints/{step.name}", ""
    with suppress(KeyNotFound):
        state = TrainingSummary.from_json(place.store(records).read(SUMMARY)).state
    attempts = tuple(_attempt(each, each in training.killed) for each in training.steps)
    ends = [each.lines[-1][0] for each in ended_steps(training) if each.lines]
    observed = Observed(
        attempts,
        tuple(training.injected),
        model,
        left,
        tuple(sorted(entry.key for entry in folder.list())),
        step.name,
        "" if has_ended else f"still running after {_SECONDS} s",
        max(ends, default=started) - started,
        tuple(f"[{entry.replica}] {entry.message}" for entry in read_log(place.store(f"{records}/logs"))),
        state,
    )
    return observed, "\n".join(f"attempt {n}:\n{each.timed_log}" for n, each in enumerate(training.steps, 1))


def _request(plan: Plan, place: Place, images: dict[str, str]) -> dict:
    parameters = {"seed": plan.seed * 1000 + plan.number, "epochs": EPOCHS, "rows": ROWS}
    if LOG_ROTATED in plan.kinds:
        # The kubelet looks at the size of a file every ten seconds.
        parameters |= {"padding": _PADDING, "seconds": 1.0}
    return {
        "train_specification": specification(images[plan.job]),
        "train_parameters": parameters,
        "distribution_specification": plan.distribution,
        "train_uri": f"s3://{place.namespace}/train_dataset",
        "model_uri": f"s3://{place.namespace}/{plan.number}/model",
        "identity": [f"soak-{place.namespace[-8:]}", str(plan.number), "1"],
    }


def _attempt(step: Step, was_killed: bool) -> Attempt:
    texts = [text for _, text in step.lines]
    verdict = None
    if texts and texts[-1].startswith("VERDICT "):
        verdict = json.loads(texts.pop().removeprefix("VERDICT "))
    elif not was_killed:
        verdict = {"succeeded": False, "cause": f"the process ended with {step.process.returncode}", "metrics": {}}
    return Attempt(tuple(texts), verdict)
