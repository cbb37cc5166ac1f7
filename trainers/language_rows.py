"""Rows for language models as the trainers of trl take them. This import path is public."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from kfp_distributed.storage.dataset import DATASET_MANIFEST, DatasetManifest

__all__ = ["language_rows"]


def language_rows(folder: str) -> list[dict[str, Any]]:
    """Return the rows of a dataset of conversations, prompts or texts, in a form that the trainers of trl take.

    | columns that `prepare_data` has kept | row |
    |---|---|
    | messages, or conversations of ShareGPT | {"messages": [{"role": "user", "content": ...}, ...]} |
    | prompt and completion | {"prompt": ..., "completion": ...}, texts or lists of messages |
    | instruction, input and output of Alpaca | the same as lists of messages, the prompt with the input below |
    | text | {"text": ...} |

    All rows are in memory. `IterableDataset.from_generator(lambda: iter(rows))` of the library datasets hands them to
    trl as they are. `Dataset.from_list` adds keys of other rows, such as the arguments of other calls, and refuses
    values of several types.

    Args:
        folder: Folder of the dataset, such as train_dir. With `rows="all"` of train_specification, it has all rows.

    Raises:
        ValueError: The dataset has other columns.
    """
    manifest = DatasetManifest.from_json(Path(folder, DATASET_MANIFEST).read_text(encoding="utf-8"))
    kinds = {column.name: column.source_type for column in manifest.columns}
    rows: list[dict[str, Any]] = []
    for shard in manifest.shards:
        for row in pq.read_table(Path(folder, shard.path)).to_pylist():
            read = {
                name: json.loads(row[name]) if kind == "conversation" else row[name] for name, kind in kinds.items()
            }
            rows.append(_row(read, manifest))
    return rows


def check_language_rows(manifest: DatasetManifest) -> None:
    """Check that a dataset has the columns of conversations, prompts or texts.

    Raises:
        ValueError: It has other columns.
    """
    _row(dict.fromkeys(column.name for column in manifest.columns), manifest)


def _row(row: dict[str, Any], manifest: DatasetManifest) -> dict[str, Any]:
    match row:
        case {"messages": messages} | {"conversations": messages}:
            return {"messages": messages}
        case {"prompt": prompt, "completion": completion}:
            return {"prompt": prompt, "completion": completion}
        case {"instruction": instruction, "output": output}:
            question = "\n\n".join(filter(None, (instruction, row.get("input"))))
            return {"prompt": [_message("user", question)], "completion": [_message("assistant", output)]}
        case {"text": text}:
            return {"text": text}
    raise ValueError(
        f"the dataset of {manifest.source} has the columns {list(row)}; allowed are messages, conversations, prompt "
        "and completion, instruction and output, or text: prepare_data keeps them from a source without a column label"
    )


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
