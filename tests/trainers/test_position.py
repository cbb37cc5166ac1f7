"""The position of a checkpoint within an epoch."""

from dataclasses import replace

import pytest

from kfp_distributed.storage.dataset import DatasetManifest, Label, Shard
from kfp_distributed.trainers.epochs.position import Position, plan_of_rows

MANIFEST = DatasetManifest("train", (), Label("kind", ("a", "b")), (Shard("part", 10, 1, "abc"),), (5, 5), 0, "x")


@pytest.mark.parametrize(
    ("position", "step", "words"),
    [
        (Position(), 0, ["after epoch 0"]),
        (Position(3), 0, ["after epoch 3"]),
        (Position(3, 7, "plan"), 7, ["epoch 4 after step 7 of 9", "remaining"]),
        (Position(3, 9, "plan", {"loss": 0.5}), 9, ["epoch 4 after step 9 of 9"]),
        (Position(3, 7, "other"), 0, ["after epoch 3", "not after step 7"]),
    ],
)
def test_a_training_continues_within_an_epoch_if_its_plan_is_the_same(position, step, words):
    start, text = position.resume("plan", 9)
    assert start == step
    assert [word for word in words if word not in text] == []
    assert Position.from_json(position.to_json()) == position


def test_a_plan_depends_on_what_decides_which_rows_come_in_which_step():
    arguments = {"batch_size": 4, "ranks": 2, "seed": 1, "devices": 1}
    plan = plan_of_rows(MANIFEST, **arguments)
    other = replace(MANIFEST, shards=(Shard("part", 10, 1, "abd"),))
    plans = {plan, plan_of_rows(other, **arguments)}
    plans |= {plan_of_rows(MANIFEST, **{**arguments, name: 3}) for name in arguments}
    plans.add(plan_of_rows(MANIFEST, **arguments, order="other"))
    assert len(plans) == 7
