"""What the parts of a source have shown, merged in order, is what one pass over all rows shows."""

import itertools
import pickle

import numpy as np
import pyarrow as pa
import pytest

from kfp_distributed.components.prepare_data.columns.row_numbers import WholeNumbers
from kfp_distributed.components.prepare_data.pieces.growing_vocabulary import GrowingVocabulary
from kfp_distributed.components.prepare_data.report.data_warnings import ColumnCounts
from kfp_distributed.components.prepare_data.report.frequent_texts import FrequentTexts
from kfp_distributed.components.prepare_data.report.precision import Precision
from kfp_distributed.components.prepare_data.scan import label_counts
from kfp_distributed.components.prepare_data.scan.label_counts import LabelCounts
from kfp_distributed.components.prepare_data.sources.read_rows import ReadAgain, RejectedRows, RowsRefused

pytestmark = pytest.mark.takes(3)

SEEDS = range(30)


def divided(values, seed):
    """Return batches of values, and the same batches in parts, some of which have none."""
    generator = np.random.default_rng(seed)
    batches = np.split(values, np.sort(generator.integers(0, len(values) + 1, 6)))
    edges = [0, *np.sort(generator.integers(0, len(batches) + 1, 3)), len(batches)]
    return batches, [batches[begin:end] for begin, end in itertools.pairwise(edges)]


def added(state, batches, convert=lambda batch: batch):
    for batch in batches:
        state.add(convert(batch))
    return state


def sent(state):
    """Return a state as another process gets it."""
    return pickle.loads(pickle.dumps(state))


def texts(batch):
    return pa.array([None if value == 0 else f"t{value}" for value in batch.tolist()], pa.string())


@pytest.mark.parametrize("seed", SEEDS)
def test_vocabularies(seed):
    batches, parts = divided(np.random.default_rng(seed).integers(0, 12, 60), seed)
    expected = GrowingVocabulary()
    codes = np.concatenate([expected.encode(texts(batch)) for batch in batches])
    merged, mapped = GrowingVocabulary(), [np.empty(0, np.int32)]
    for part in parts:
        local = GrowingVocabulary()
        local_codes = [local.encode(texts(batch)) for batch in part]
        of_merged = merged.merge(sent(local))
        mapped += [of_merged[each] for each in local_codes]
    assert list(merged.codes.items()) == list(expected.codes.items())
    assert list(merged.rows.items()) == list(expected.rows.items())
    assert merged.missing == expected.missing
    assert np.concatenate(mapped).tolist() == codes.tolist()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("most", [3, 64])
def test_frequent_texts(seed, most):
    values = np.minimum(np.random.default_rng(seed).geometric(0.3, 200), 40)
    batches, parts = divided(values, seed)
    merged = FrequentTexts(most)
    for part in parts:
        merged.merge(sent(added(FrequentTexts(most), part, texts)))
    counts = np.bincount(values)
    frequent = {f"t{value}" for value in np.flatnonzero(counts > len(values) / (most + 1))}
    assert frequent <= {*merged.texts}
    assert len(merged.texts) <= most
    if most == 64:
        assert merged.texts == added(FrequentTexts(most), batches, texts).texts


def numbers(seed):
    generator = np.random.default_rng(seed)
    kinds = (
        np.arange(50.0),
        -np.arange(50.0),
        np.sort(generator.integers(0, 60, 50)).astype(float),
        generator.integers(0, 9, 50) + 2.0**24,
        np.where(generator.random(50) < 0.02, np.nan, np.arange(50.0)),
        generator.random(50),
        np.full(50, 3.0),
    )
    return kinds[seed % len(kinds)]


@pytest.mark.parametrize("seed", range(70))
def test_numbers(seed):
    batches, parts = divided(numbers(seed), seed)
    for kind in (WholeNumbers, Precision):
        expected, merged = added(kind(), batches), kind()
        for part in parts:
            merged.merge(sent(added(kind(), part)))
        if kind is WholeNumbers:
            assert merged.is_id("x") == expected.is_id("x")
            assert merged.is_id("id") == expected.is_id("id")
        else:
            assert merged.collapses() == expected.collapses()
            assert merged.distinct.tolist() == expected.distinct.tolist()


def test_precision_of_tensors_after_a_part_without_rows():
    merged, expected = Precision(), Precision()
    batch = np.array([[1.0, 2.0**24], [2.0, 2.0**24 + 1]])
    expected.add(batch)
    for part in ([], [batch], []):
        merged.merge(added(Precision(), part))
    assert merged.collapses() == expected.collapses() == (2.0**24, 2.0**24 + 1)


def test_counts_of_a_column():
    first, second = ColumnCounts("number", missing=1, lowest=2, highest=5), ColumnCounts("number", missing=2, lowest=1)
    first.merge(second)
    assert (first.missing, first.lowest, first.highest) == (3, 1, 5)


def label_error(batches_of_parts, **options):
    """Return the end of a pass, and of one whose parts are counted by themselves."""
    ends = []
    whole = LabelCounts("y", "classification", is_task_open=True)
    try:
        for batch in (batch for part in batches_of_parts for batch in part):
            whole.vocabulary.encode(pa.array(batch, pa.string()))
            whole.check()
        ends.append((whole.reason(), list(whole.vocabulary.rows.items())))
    except (ReadAgain, ValueError) as error:
        ends.append(repr(error))
    merged = LabelCounts("y", "classification", is_task_open=True)
    try:
        for index, part in enumerate(batches_of_parts):
            local = LabelCounts("y", "classification", is_task_open=True, is_start=index == 0)
            try:
                for batch in part:
                    local.vocabulary.encode(pa.array(batch, pa.string()))
                    local.check()
            except (ReadAgain, ValueError) as error:
                merged.merge(sent(local))
                raise AssertionError("the merge of a part with an error has none") from error
            merged.merge(sent(local))
        ends.append((merged.reason(), list(merged.vocabulary.rows.items())))
    except (ReadAgain, ValueError) as error:
        ends.append(repr(error))
    return ends


@pytest.mark.parametrize(
    "parts",
    [
        [[["1", "2"]], [["2", "3"]], [["1", None]]],
        [[["1", "2"]], [["3", "1.5"], ["a"]]],
        [[["1", "2"]], [["3", "1.5", "a"]]],
        [[["1", "a"]], [["1.5"]]],
        [[], [["0.5"]]],
        [[["1.5"], ["a"]], [["b"]]],
        [[["a"]], [[str(number) for number in range(150)]]],
        [[[str(number) for number in range(60)]], [[str(number) for number in range(40, 120)]]],
        [[["c1", "c2", "c3"]], [["c4"], ["c5"]], [["c6", "1.5"]]],
        [[["c1"]], [[f"d{number}" for number in range(9)]]],
        [[["7"]], [[f"{number}" for number in range(9)]]],
    ],
)
def test_labels(parts, monkeypatch):
    monkeypatch.setattr(label_counts, "MAXIMUM_CLASSES", 5 if len(parts[-1]) and len(parts[-1][0]) < 60 else 10**6)
    expected, found = label_error(parts)
    assert found == expected


def test_rejected_rows_have_their_numbers_in_the_file():
    merged = RejectedRows("skip")
    first, second = RejectedRows("skip"), RejectedRows("skip")
    first.add("a.csv", 3, "x", "is wrong")
    for row in range(30):
        second.add("a.csv", row, "", "is short")
    second.add("b.csv", 2, "", "is short")
    merged.merge(sent(first), {})
    merged.merge(sent(second), {"a.csv": 100})
    assert merged.count == 32
    assert [str(row) for row in merged.first[:2]] == ["row 3 of a.csv: 'x' is wrong", "row 100 of a.csv is short"]
    assert len(merged.first) == 20
    assert merged.columns == {"x": 1, "": 31}
    assert merged.notes() == [
        "left out 32 rows that cannot be used (whole rows: 31, 'x': 1), such as row 100 of a.csv is short"
    ]


def test_twenty_rejected_rows_of_several_parts_are_refused():
    merged, part = RejectedRows(), RejectedRows()
    for row in range(12):
        part.add("a.csv", row + 1, "", "is short")
    merged.merge(part, {})
    with pytest.raises(RowsRefused, match=r"^rows 1, 2, .*, 19, 20 of a.csv: each is short\nthese are the first"):
        merged.merge(part, {"a.csv": 12})
