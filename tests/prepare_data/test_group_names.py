"""Groups of dates and booleans: one value is one group in all spellings and formats."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_distributed.components.prepare_data.scan.split_keys import hashes_of_texts
from kfp_distributed.storage.dataset import read_batches

pytestmark = pytest.mark.takes(5)


@pytest.mark.parametrize(
    "spellings",
    [
        (
            "2024-01-31",
            "2024-1-31",
            "2024-01-31 00:00:00",
            "2024-01-31T00:00:00.000000000",
            "2024-01-31T01:00:00+01:00",
        ),
        ("2024-01-31T10:00:00Z", "2024-01-31 10:00", "2024-01-31T11:00:00+01:00", "2024-01-31 10:00:00 AM"),
        ("2024-01-31T10:00:00.5Z", "2024-01-31 10:00:00.500000"),
        ("2024-01-05", "2024/1/5", "2024.01.05", "Jan 5, 2024", "January 05 2024", "5-jan-2024", "05 JAN 2024 00:00"),
        ("1/13/2024", "01/13/2024", "1/13/2024 0:00", "01/13/2024 00:00:00", "1/13/2024 12:00 AM"),
        ("2.1.2024", "02.01.2024", "2.01.2024 00:00", "2024-01-02"),
        ("2-1-2024 13:05", "02-01-2024 1:05 pm", "2/1/2024 13:05"),
        ("2024-03", "2024/03", "Mar 2024", "March 2024", "03/2024", "2024-03-01", "1 Mar 2024"),
        ("2018-10-13", "13-10-2018", "13/10/2018", "13.10.2018", "10/13/2018"),
        ("true", "True", "TRUE", " true"),
    ],
)
def test_a_value_is_one_group_in_all_spellings(spellings):
    assert len({*hashes_of_texts(pa.array(spellings)).tolist()}) == 1


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_groups_of_a_declared_form_are_its_dates(run, tmp_path, kind):
    days = [f"{day}{month:02}2019" for month in (1, 2) for day in range(1, 10)]
    rows = [{"x": i, "g": days[i % 18].zfill(8 * (i // 18 % 2)), "label": "uv"[i // 2 % 2]} for i in range(90)]
    path = tmp_path / f"data.{kind}"
    if kind == "csv":
        path.write_text("x,g,label\n" + "".join(f"{row['x']},{row['g']},{row['label']}\n" for row in rows))
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    manifests = run(path, group_column="g", columns={"g": "date %d%m%Y"}, test_fraction=0.3)
    found = {}
    for split, manifest in manifests.items():
        for inputs, _ in read_batches(tmp_path / "out" / split, manifest):
            for x in inputs[:, [column.name for column in manifest.columns].index("x")]:
                found.setdefault(int(x) % 18, set()).add(split)
    assert len(found) == 18
    assert all(len(splits) == 1 for splits in found.values())


@pytest.mark.parametrize(
    ("texts", "is_named"),
    [
        (["2019-03-05", "5/3/2019"], True),
        (["5-3-2019", "5/3/2019", "2019-03-05"], True),
        (["1/2/2019", "1/13/2019", "1/2/2019 10:00"], False),
        (["2019-03-05", "5.3.2019", "16/3/2019"], False),
        (["2/1/2024", "2-1-2024", "7/8/2024"], False),
        (["2/1/2024", "16-1-2024", "2-1-2024 10:00"], False),
        (["2/1/2024", "2 Jan 2024"], True),
        (["2/1/2024", "2.1.2024"], True),
        (["2/1/2024", "13/1/2024", "1-13-2024"], True),
        (["2.1.2024", "2.13.2024", "2024-02-01"], True),
        (["2.1.2024", "13.2.2024", "2024-02-01"], False),
        (["2.1.2024", "2.13.2024", "2.14.2024 10:00"], False),
        (["2.1.2024", "2.13.2024", "13.2.2024"], True),
        (["13.1.2024", "2.13.2024", "2024-02-01"], False),
        (["2/1/2024", "30 Feb 2024"], False),
        (["a", "2019-03-05"], False),
        (["2019-03-13", "20190313"], True),
        (["13.03.2019", "20190313"], True),
        (["2019-03-13", "13.03.19"], True),
        (["13-Mar-19", "13.03.19"], True),
        (["13.03.19", "14.04.19"], False),
        (["2019-03-13", "20191313"], False),
        (["20190313", "20190314"], False),
    ],
)
def test_groups_whose_dates_have_several_forms_are_named(file, run, capsys, texts, is_named):
    rows = [f"{i},{texts[i % len(texts)]},{'uv'[i // 4 % 2]}\n" for i in range(40)]
    rows += [f"{i},p{i},{'uv'[i % 2]}\n" for i in range(20)]
    run(file("data.csv", "x,g,label\n" + "".join(rows)), group_column="g")
    assert ("group_column 'g' has dates in several forms, such as" in capsys.readouterr().out) == is_named


def test_other_texts_and_moments_are_other_groups():
    texts = ["2024-01-31", "2024-02-31", "2024-13-01", "30.1.2024", "2024-01-31 x", "", "date 0", "1970-01-01"]
    texts += ["2/1/2024", "1/2/2024", "2.1.2024", "1.2.2024", "2024-05", "true", "truth", "5", "1.5.19"]
    texts += ["1/13/2024", "29/1/2024", "12/31/2024", "31/31/2024", "Mai 5, 2024", "5 May", "Feb 30, 2024", "2/30/2024"]
    moments = [f"2024-01-31 00:00:00.{digits}" for digits in ("000001", "000000001", "000000002")]
    assert len({*hashes_of_texts(pa.array(texts + moments)).tolist()}) == len(texts + moments)


def test_dates_of_several_files_are_the_same_groups(run, tmp_path):
    days = pa.array(range(19_700, 19_712), pa.int32()).cast(pa.date32())
    kinds = [pa.date32(), pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.string()]
    folder = tmp_path / "data"
    folder.mkdir()
    for i, kind in enumerate(kinds):
        values = days.cast(pa.timestamp("ns")).cast(kind) if pa.types.is_timestamp(kind) else days.cast(kind)
        table = pa.table({"x": range(12), "day": values, "label": [f"{j % 2}" for j in range(12)]})
        pq.write_table(table, folder / f"{i}.parquet")
    manifests = run(folder, group_column="day", validation_fraction=0.25, test_fraction=0.25)
    found = {}
    for split, manifest in manifests.items():
        for inputs, _ in read_batches(tmp_path / "out" / split, manifest):
            for x in inputs[:, 0]:
                found.setdefault(float(x), set()).add(split)
    assert len(found) == 12
    assert all(len(splits) == 1 for splits in found.values())
