"""Write messages.csv: made-up messages to a shop, and the team that should answer. Nothing is downloaded.

A message has five sentences with two words each that hint at a team. A hint names the right team with a probability of
0.7, and any of the three other teams otherwise. So no program reaches an accuracy of 1: counting the hints, knowing all
of them, reaches 0.98. Guessing reaches 0.25.
"""

import csv
import random
from pathlib import Path

TEAMS = {
    "delivery": "parcel courier tracking shipment doorstep van depot postcode neighbour delay route customs",
    "billing": "invoice refund card charge receipt discount total tax bank balance currency coupon",
    "account": "password login profile username email settings privacy newsletter code phone session avatar",
    "repair": "screen battery cable button noise warranty crack motor hinge charger lens speaker",
}
"""Words that hint at each team, separated by spaces."""

SENTENCES = (
    "I have a question about the {} and the {}.",
    "Please look at the {}, not only at the {}!",
    "My {} has been wrong since the {} changed.",
    "Yesterday the {} was fine, but the {} was not.",
    "Nobody told me that the {} depends on the {}.",
    "Is the {} more important than the {}?",
)
RIGHT = 0.7
"""Probability that a hint names the right team."""


def make_message(random_numbers: random.Random, team: str) -> str:
    """Return a message to a team."""
    others = [name for name in TEAMS if name != team]
    words = []
    for _ in range(10):
        hinted = team if random_numbers.random() < RIGHT else random_numbers.choice(others)
        words.append(random_numbers.choice(TEAMS[hinted].split()))
    sentences = [random_numbers.choice(SENTENCES) for _ in range(5)]
    return " ".join(sentences).format(*words)


def write_messages(file: Path, rows: int = 1600, seed: int = 0) -> None:
    """Write messages as CSV with the columns `message` and `team`.

    Args:
        file: File to write.
        rows: Number of messages, the same for each team.
        seed: Seed of the messages. Equal seeds give equal files.
    """
    random_numbers = random.Random(seed)
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["message", "team"])
        for number in range(rows):
            team = list(TEAMS)[number % len(TEAMS)]
            writer.writerow([make_message(random_numbers, team), team])


if __name__ == "__main__":
    write_messages(Path("messages.csv"))
