"""Lines and errors with `like` advise nothing that `like` refuses."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

REFUSED = re.compile(
    r"drop_columns|set columns|set task|set missing|Subtract|logarithm|scale them|constant in the source"
)
ALL = {"validation_fraction": 0, "test_fraction": 0, "shards": 1}


def columns(rows=400):
    index = np.arange(rows)
    label = index % 2
    return {
        "id": index.tolist(),
        "offset": (1_700_000_000 + index % 7).tolist(),
        "large": (index * 1e34).tolist(),
        "constant": [1.5] * rows,
        "one": ["x"] * rows,
        "text": [f"code {i}" for i in index.tolist()],
        "quantity": [f"{i % 9} kg" for i in index.tolist()],
        "far": [*(index[:-1] % 10 / 7).tolist(), 1e9],
        "gap": [None if i % 3 else i / 7 for i in index.tolist()],
        "leak": label.tolist(),
        "label": [20 * value + 1970 for value in label.tolist()],
    }


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_no_line_advises_what_like_refuses(file, run, tmp_path, capsys, kind, task):
    def write(name, values):
        table = pa.table(values)
        source = file(f"{name}.{kind}", "\n".join(map(json.dumps, table.to_pylist())))
        if kind == "csv":
            pa_csv.write_csv(table, source)
        if kind == "parquet":
            pq.write_table(table, source)
        return source

    train = run(write("first", columns()), "first", task=task, **ALL)["train"]
    log = capsys.readouterr().out
    assert len(REFUSED.findall(log)) > 6, "the lines without like have advice"
    other = columns(390) | {"quantity": ["new"] * 390}
    run(write("new", other), "new", like=train, task=task, label_column="label", **ALL)
    log = capsys.readouterr().out
    assert log.count("warning: ") > 6, "the lines remain"
    assert not REFUSED.findall(log)


def test_a_column_without_values_is_to_be_written_as_before(file, run, capsys):
    lines = [json.dumps({"x": i, "c": "ab"[i % 2], "label": "uv"[i % 2]}) for i in range(40)]
    train = run(file("first.jsonl", "\n".join(lines)), "first", **ALL)["train"]
    lines = [line.replace('"a"', "null").replace('"b"', "null") for line in lines]
    run(file("new.jsonl", "\n".join(lines)), "new", like=train, task="classification", **ALL)
    line = "column 'c' has no value in any of 40 rows: write it as the training rows have it\n"
    assert line in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ('"seven"', "is \"seven\", but numbers in the training data: write values of one type in all lines ("),
        ('{"a": 1}', "column 'x' has objects ({...}) inside the object of a line: write their values into keys of "),
    ],
)  # fmt: skip
def test_errors_of_json_advise_what_like_takes(file, run, value, message):
    lines = [json.dumps({"x": i / 2, "c": "ab"[i % 2], "label": "uv"[i % 2]}) for i in range(40)]
    train = run(file("first.jsonl", "\n".join(lines)), "first", **ALL)["train"]
    wrong = [line.replace('"x": 1.5', f'"x": {value}') for line in lines]
    if value != '"seven"':
        wrong = [re.sub(r'"x": [^,]*', f'"x": {value}', line) for line in lines]
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        run(file("new.jsonl", "\n".join(wrong)), "new", like=train, task="classification", **ALL)
    assert not REFUSED.findall(str(error.value))


def test_errors_of_types_advise_what_like_takes(run, tmp_path):
    def write(name, x):
        table = pa.table({"x": x, "c": [*"ab"] * 20, "label": [*"uv"] * 20})
        pq.write_table(table, tmp_path / f"{name}.parquet")
        return tmp_path / f"{name}.parquet"

    train = run(write("first", [i / 2 for i in range(40)]), "first", **ALL)["train"]
    with pytest.raises(ValueError, match=r"'x' is of type list<.*: allowed are .* Write it as the train") as error:
        run(write("new", [[i] for i in range(40)]), "new", like=train, task="classification", **ALL)
    assert not REFUSED.findall(str(error.value))
