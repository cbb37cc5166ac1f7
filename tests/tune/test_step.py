"""The `tune` step: its outputs, and what it does when it or a trial is killed, pruned or fails."""

import re
import signal
from pathlib import Path

import pytest

from kfp_distributed.storage.model import verify_model_folder

pytestmark = pytest.mark.takes(60)


def test_a_search_ends_with_the_model_of_its_best_trial(step):
    code, output, (parameters, distribution, value, model_uri, metadata) = step.run()
    assert code == 0, output
    rates = [trial.params["rate"] for trial in step.trials()]
    assert len(rates) == 3
    assert parameters == {"rate": min(rates)}
    assert (distribution, value) == ({}, pytest.approx(min(rates) + 1 / 3))
    assert Path(step.folder, "model", "weights").read_text() == str(min(rates))
    assert verify_model_folder(step.folder / "model").metrics["loss"] == value == metadata["metrics"]["loss"]
    assert [file.parent.name for file in step.folder.rglob("model.json")] == ["model"], "the other models are deleted"
    assert len([*step.folder.glob("checkpoints/tune-*-*/report.html")]) == 3
    assert model_uri == str(step.folder / "model")
    assert "best trial" in (step.folder / "report").read_text()
    for number in range(3):
        assert len(re.findall(rf"trial-{number} worker-0: epoch \d/3 loss", output)) == 3


def test_a_killed_step_continues_its_trials(step):
    slow = {"train_parameters": {"slow": True, "epochs": 6}}
    process = step.start(**slow)
    for line in process.stdout:
        if "trial-1 worker-0: epoch 3/6" in line:
            break
    process.send_signal(signal.SIGKILL)
    process.communicate()
    code, output, _ = step.run(**slow)
    assert code == 0, output
    assert [trial.state.name for trial in step.trials()] == ["COMPLETE"] * 3
    begun = {int(epoch) for epoch in re.findall(r"trial-1 worker-0: begins after epoch (\d)", output)}
    assert min(begun) >= 2, output


def test_a_pruned_trial_ends_early_and_a_failed_one_is_named(step):
    choices = {"rate": {"choices": [0.1, 0.2, 0.8, 0.95]}}
    settings = {"sampler": "grid", "pruner": "median", "trial_failures": 1}
    slow = {"train_parameters": {"slow": True, "epochs": 8}}
    code, output, found = step.run(search_space=choices, search=settings, trials=4, parallel_trials=1, **slow)
    assert code == 0, output
    states = {trial.params["rate"]: trial.state.name for trial in step.trials()}
    assert found[0]["rate"] == 0.1
    assert states[0.95] == "FAIL"
    assert re.search(r"trial \d has failed: .*ValueError: rate is 0.95", output)


def test_a_search_whose_trials_fail_ends_with_the_first_cause_and_a_report(step):
    given = {"search_space": {"rate": {"choices": [0.95, 0.96]}}, "search": {"trial_failures": 0}}
    code, output, _ = step.run(**given, parallel_trials=1)
    assert code == 1
    cause = r"SearchFailed: 1 trials have failed; trial 0: .*ValueError: rate is 0.9"
    assert re.search(cause, output.splitlines()[-2]), output
    assert re.search(r"rate is 0.9", (step.folder / "report").read_text())
