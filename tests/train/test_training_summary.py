"""The summary of a training."""

from dataclasses import replace

import pytest

from kfp_distributed.components.train.tell.training_summary import TrainingSummary, format_moment

SUMMARY = TrainingSummary(
    name="tune-train-1-0123456789ab",
    type="TF",
    namespace="team",
    labels={"run": "a", "task": "train", "iteration": "1"},
    replicas=("worker-0", "worker-1"),
    created=1795442712.25,
    folder="s3://b/checkpoints/tune-train-1-0123456789ab",
    model="s3://b/m",
)


@pytest.mark.parametrize("summary", [SUMMARY, replace(SUMMARY, state="failed", reason="why", ended=1795442800.5)])
def test_a_summary_is_the_same_after_json(summary):
    assert TrainingSummary.from_json(summary.to_json()) == summary


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", SUMMARY.to_json().replace("running", "asleep"), SUMMARY.to_json().replace("17954", '"17954')],
)
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="this is no summary of a training"):
        TrainingSummary.from_json(text)


def test_the_key_of_the_index_sorts_by_time():
    assert SUMMARY.index_key == "kfp-distributed/team/20261123T140512Z-tune-train-1-0123456789ab.json"
    assert format_moment(1795442712.25, fraction=True) == "20261123T140512250Z"
