"""Direct preference optimization of a language model: with one and two ranks, of an adapter and of all parameters."""

import json
import subprocess
from types import SimpleNamespace

import make_tiny_llama
import pytest
from environments import environment
from forked_replicas import forked
from step_lines import into

from kfp_distributed.components import prepare_data
from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.trainers import train_specification

pytestmark = pytest.mark.takes(40)

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def preference(number):
    one, other = number % 7, number // 7 % 6
    asked = {"role": "user", "content": f"What is {WORDS[one]} plus {WORDS[other]}? {number}"}
    answers = f"It is {WORDS[one + other]}.", "I do not know."
    chosen, rejected = ([asked, {"role": "assistant", "content": answer}] for answer in answers)
    return {"chosen": chosen, "rejected": rejected}


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """A function that trains with so many ranks on 64 preferences, and returns the metrics, the log and the answers."""
    folder = tmp_path_factory.mktemp("preferences")
    rows = [json.dumps(preference(number)) for number in range(80)]
    (folder / "rows.jsonl").write_text("\n".join(rows))
    (folder / "texts.csv").write_text("message,team\n" + "".join(f'"{row[:60]}",x\n' for row in map(repr, rows)))
    names = ("train_dataset", "validation_dataset", "test_dataset", "overview")
    outputs = {name: SimpleNamespace(path=str(folder / name), uri=str(folder / name), metadata={}) for name in names}
    split = {"validation_fraction": 0.2, "test_fraction": 0}
    prepare_data.python_func(**outputs, source=str(folder / "rows.jsonl"), split=split)
    program = [make_tiny_llama.__file__, folder / "texts.csv", folder / "tiny-llama"]
    subprocess.run(forked(environment("torch2"), *program), check=True)
    config = folder / "tiny-llama" / "config.json"  # With dropout, the model would differ from its reference.
    config.write_text(json.dumps(json.loads(config.read_text()) | {"attention_dropout": 0.5}))

    def run(ranks=1, place="", **parameters):
        place = folder / (place or f"training-{len([*folder.iterdir()])}")
        request = Request(
            train_uri=str(folder / "train_dataset"),
            validation_uri=str(folder / "validation_dataset"),
            model_uri=str(place / "model"),
            checkpoint_uri=str(place / "checkpoints"),
            train_specification=train_specification("language_model"),
            train_parameters={
                "base_model": str(folder / "tiny-llama"),
                "objective": "dpo",
                "batch_size": 16,
                "learning_rate": 1e-3,
                "evaluate_steps": 2,
                "checkpoint_steps": 2,
                **parameters,
            },
            distribution_specification={"distribution_type": "PyTorch", "number_of_workers": 1}
            if ranks == 2
            else {"distribution_type": "Job"},
            identity=(str(place),),
        )
        lines = []
        with pytest.MonkeyPatch.context() as patch:
            for image in ("PYTORCH", "LANGUAGE_MODEL"):
                patch.setenv(f"KFP_DISTRIBUTED_{image}_PYTHON", str(environment("torch2")))
            outcome = launch(request, LocalRunner(), into(lines))
        (metrics,) = outcome.metrics.values()
        return metrics, "\n".join(lines), outcome.fine_tuning.answers, place / "model"

    return run


def values(rows, name):
    return [row[name] for row in rows if name in row]


def test_ranks_change_nothing_and_the_margin_grows(train):
    alone, _, answers, _ = train(micro_batch_size=8, learning_rate=1e-2)
    together, log, *_ = train(2, micro_batch_size=4, learning_rate=1e-2)
    for name in ("loss", "rewards/margins", "logps/chosen", "val_rewards/margins"):
        assert len(values(alone, name)) == (2 if name.startswith("val_") else 4)
        assert values(alone, name) == pytest.approx(values(together, name), rel=1e-3, abs=1e-5), name
    margins = values(alone, "rewards/margins")
    assert margins[0] == 0
    assert margins[-1] > margins[1] > 0
    assert values(alone, "val_rewards/accuracies")[-1] == 1
    assert values(alone, "rewards/chosen")[-1] > values(alone, "rewards/rejected")[-1]
    assert "64 rows of " in log
    assert len(answers) == 16
    assert all(answer.reference.startswith("It is ") and "What is" in answer.prompt for answer in answers)


def test_all_parameters_are_compared_to_the_base_model_also_after_a_restart(train):
    first, *_ = train(place="restarted", method="full")
    rows, log, answers, model = train(place="restarted", method="full", epochs=2)
    assert "continues after checkpoint-4" in log
    assert json.loads((model / "config.json").read_text())["attention_dropout"] == 0.5
    margins = values(rows, "rewards/margins")
    assert len(margins) == 8
    assert margins[:4] == values(first, "rewards/margins")
    assert margins[0] == 0
    assert min(margins[4:]) > margins[3] > 0
    assert len(answers) == 16
