"""Trainings of one pipeline under `kfp.local`, which gives all tasks of a component one folder."""

import re

import pytest
from kfp import dsl

from kfp_distributed.components import prepare_data, train
from kfp_distributed.pipelines.local_run import local_run

pytestmark = pytest.mark.takes(12)

# The first attempt with epochs=3 fails.
FIT = """
def fit(model_dir, checkpoint_dir, stopped: str, epochs: int = 2):
    from pathlib import Path

    from kfp_distributed.trainers.sync import flush

    state = Path(checkpoint_dir, "state")
    begun = int(state.read_text()) if state.exists() else 0
    print(f"{epochs} epochs: begins after {begun}")
    for epoch in range(begun + 1, epochs + 1):
        state.write_text(str(epoch))
        if epoch == 2 and epochs == 3 and not Path(stopped).exists():
            Path(stopped).touch()
            flush()
            raise RuntimeError("out of luck")
    Path(model_dir, "weights").write_text(str(epochs))
"""


def test_a_retry_resumes_and_another_task_does_not(tmp_path, capfd):
    @dsl.pipeline
    def three_trainings(stopped: str):
        data = prepare_data(source="digits", shards=1)
        before = data
        for epochs in (2, 2, 3):
            before = (
                train(
                    train_dataset=data.outputs["train_dataset"],
                    train_specification={"function": "fit", "source": FIT},
                    train_parameters={"epochs": epochs, "stopped": stopped},
                    checkpoint_uri="s3://checkpoints",
                )
                .after(before)
                .set_retry(1, backoff_duration="0s")
            )

    with local_run(tmp_path):
        three_trainings(stopped=str(tmp_path / "stopped"))
    begun = re.findall(r" INFO worker-0 (\d epochs: begins after \d)$", capfd.readouterr().out, re.MULTILINE)
    assert list(dict.fromkeys(begun)) == [
        "2 epochs: begins after 0",
        "3 epochs: begins after 0",
        "3 epochs: begins after 2",
    ]
    assert begun.count("2 epochs: begins after 0") == 2
