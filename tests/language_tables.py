"""Tables of rows for language models in the formats that `prepare_data` reads."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = range(60)
FORMATS = ("jsonl", "parquet", "arrow", "csv")


def turn(number, question="role", text="content", names=("user", "assistant")):
    return [
        {question: names[0], text: f"What is {number} + 1?"},
        {question: names[1], text: f"It is {number + 1}. Ünd"},
    ]


def message(role, content="x", **others):
    return {"role": role, "content": content, **others}


GOOD = [message("user"), message("assistant")]


def write(rows, file):
    """Write rows in the format of the file's name. CSV has lists as JSON texts."""
    if file.suffix == ".jsonl":
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif file.suffix == ".csv":
        with file.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, [*dict.fromkeys(name for row in rows for name in row)])
            writer.writeheader()
            writer.writerows(
                {name: json.dumps(v) if isinstance(v, list) else v for name, v in row.items()} for row in rows
            )
    else:
        write_table(pa.Table.from_pylist(rows), file)
    return file


def write_table(table, file):
    """Write a table of Arrow as Parquet or as Arrow, by the file's name."""
    if file.suffix == ".parquet":
        pq.write_table(table, file)
    else:
        with pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    return file


def splits(tmp_path, manifests, name="out"):
    """Return the rows of each split."""
    return {
        split: [row for shard in m.shards for row in pq.read_table(tmp_path / name / split / shard.path).to_pylist()]
        for split, m in manifests.items()
    }
