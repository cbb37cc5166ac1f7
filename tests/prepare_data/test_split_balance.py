"""Warnings about splits whose rows are far from their fractions, because the rows of a group or time stay together."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_distributed.components.prepare_data.report.frequent_texts import FrequentTexts

GROUPS = ["large"] * 190 + [f"g{i}" for i in range(10)]


def csv_text(column, values):
    return f"x,{column},label\n" + "".join(f"{i},{value},{'ab'[i % 2]}\n" for i, value in enumerate(values))


@pytest.fixture
def warnings_of(file, run, tmp_path, capsys):
    """Run the step: warnings_of("g", values, group_column="g") -> warnings about the split, rows of the splits."""

    def run_step(column, values, **options):
        options = {"shards": 1} | options
        manifests = run(file("data.csv", csv_text(column, values)), **options)
        lines = [line for line in capsys.readouterr().out.splitlines() if "the fractions ask for" in line]
        page = (tmp_path / "out" / "overview.html").read_text()
        assert all(line.split("rows, where")[1][:20] in page for line in lines)
        return lines, [manifest.rows for manifest in manifests.values()]

    return run_step


def test_a_group_with_most_rows_is_named(warnings_of):
    (line,), (train, validation, test) = warnings_of("g", GROUPS, group_column="g", seed=1)
    assert max(train, validation, test) >= 190
    assert line == (
        f"warning: group_column 'g': the splits have {train} training, {validation} validation and {test} test rows, "
        "where the fractions ask for 160, 20 and 20. All 190 rows with the value 'large' are in the "
        f"{'training' if train >= 190 else 'validation' if validation >= 190 else 'test'} split. Change the fractions, "
        "leave some of these rows out, or name another column"
    )


@pytest.mark.parametrize(("groups", "rows"), [(20, 200), (3, 3), (200, 200)])
def test_groups_of_equal_size_cause_no_warning(warnings_of, groups, rows):
    options = {"validation_fraction": 1 / 3, "test_fraction": 1 / 3} if groups == 3 else {}
    lines, _ = warnings_of(
        "g", [i % groups for i in range(rows)], group_column="g", task="none", label_column="", **options
    )
    assert not lines


def test_a_group_that_is_in_few_rows_is_not_named(warnings_of):
    """Its text is not kept in memory."""
    values = [f"g{i // 10}" for i in range(2000)]
    options = {"validation_fraction": 0.002, "test_fraction": 0, "task": "none", "label_column": ""}
    (line,), rows = warnings_of("g", values, group_column="g", **options)
    assert rows == [1990, 10, 0]
    assert "ask for 1,996, 4 and 0. All 10 rows with one value are in the " in line


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (["2024-01-01"] * 50 + ["2024-02-01"] * 140 + ["2024-03-01"] * 10, "2024-02-01 00:00:00+00:00"),
        ([1] * 50 + [2**60] * 140 + [2**60 + 1] * 10, str(2**60)),
        ([1] * 50 + [2.5] * 140 + [3] * 10, "2.5"),
    ],
    ids=["dates", "integers", "floats"],
)
def test_a_time_with_many_rows_is_named(warnings_of, values, text):
    (line,), rows = warnings_of("t", values, time_column="t", test_fraction=0.05)
    assert rows == [50, 140, 10]
    assert line == (
        "warning: time_column 't': the splits have 50 training, 140 validation and 10 test rows, where the fractions "
        f"ask for 170, 20 and 10. All 140 rows with the value '{text}' are in the validation split. Change the "
        "fractions, leave some of these rows out, or name another column"
    )


def test_different_times_cause_no_warning(warnings_of):
    assert warnings_of("t", range(200), time_column="t") == ([], [160, 20, 20])


def test_rows_of_files_of_splits_are_not_counted(file, run, capsys):
    other = file("test.csv", csv_text("g", [f"t{i % 5}" for i in range(400)]))
    run(
        file("data.csv", csv_text("g", [f"g{i % 20}" for i in range(200)])),
        sources={"test": str(other)},
        group_column="g",
    )
    assert "the fractions ask for" not in capsys.readouterr().out


@given(
    batches=st.lists(st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=30), min_size=1, max_size=8),
    most=st.integers(1, 4),
)
def test_texts_of_many_rows_are_kept(batches, most):
    texts = FrequentTexts(most)
    for batch in batches:
        texts.add(pa.array(batch))
    rows = Counter(text for batch in batches for text in batch)
    assert {text for text, count in rows.items() if count > rows.total() / (most + 1)} <= {*texts.texts}
    assert len(texts.texts) <= most


def test_a_frequent_text_among_many_rare_ones_is_kept():
    texts = FrequentTexts()
    for number in range(20):
        batch = np.arange(number * 1000, number * 1000 + 1000).astype(str).tolist()
        texts.add(pa.array([*batch, None, *["often"] * 100]))
    assert "often" in texts.texts
