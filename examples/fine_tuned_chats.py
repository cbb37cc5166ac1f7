"""Fine-tune a language model on chats with the built-in trainer: it learns which team answers a message.

To train on this machine with a tiny model, run these once, with a Python that has kfp-distributed with its extras
`local` and `language-model`:

    python make_messages_csv.py
    python make_tiny_llama.py messages.csv tiny-llama

and then `python fine_tuned_chats.py tiny-llama`.
"""

import csv
import json
import sys
from pathlib import Path

from kfp import dsl

from kfp_distributed.components import prepare_data, train
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.trainers import train_specification


def write_chats(messages: Path, chats: Path) -> None:
    """Write a conversation for each message: the message of a user, and the answer of the assistant.

    Args:
        messages: CSV file with the columns `message` and `team`.
        chats: JSON Lines file to write.
    """
    with messages.open() as source, chats.open("w") as target:
        for row in csv.DictReader(source):
            answer = f"The team for {row['team']} will answer you."
            said = [{"role": "user", "content": row["message"]}, {"role": "assistant", "content": answer}]
            target.write(json.dumps({"messages": said}) + "\n")


@dsl.pipeline
def fine_tune_on_chats(source: str, base_model: str, workers: int = 1, epochs: int = 1) -> None:
    """Fine-tune a model. The report of `train` shows its loss, and the answers that it learned.

    Args:
        source: Address of the chats.
        base_model: Address of the model, or its folder in each replica.
        workers: Number of workers beside the master, which trains as well.
        epochs: Number of passes over the chats.
    """
    data = prepare_data(source=source, split={"validation_fraction": 0.1, "test_fraction": 0})
    train(
        train_dataset=data.outputs["train_dataset"],
        validation_dataset=data.outputs["validation_dataset"],
        train_specification=train_specification("language_model"),
        train_parameters={"base_model": base_model, "epochs": epochs, "method": "full", "learning_rate": 0.003},
        distribution_specification={"distribution_type": "PyTorch", "number_of_workers": workers},
    )


if __name__ == "__main__":
    write_chats(Path("messages.csv"), Path("chats.jsonl"))
    with local_run("fine-tuned-chats-run"):
        fine_tune_on_chats(source="chats.jsonl", base_model=str(Path(sys.argv[1]).resolve()), epochs=3)
