"""Parquet and Arrow files of one folder whose columns have different types."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

LARGE = 2**53 + 1
ALL_TRAINING = {"task": "none", "label_column": "", "shards": 1, "validation_fraction": 0, "test_fraction": 0}


@pytest.fixture
def kept(run, tmp_path):
    """Run the step on a file for each array: kept(arrays) -> type in the manifest, sorted values of column x."""

    def run_step(arrays, **options):
        (tmp_path / "data").mkdir()
        for name, values in zip("abc", arrays, strict=False):
            pq.write_table(pa.table({"x": values}), tmp_path / "data" / f"{name}.parquet")
        column = run(tmp_path / "data", **ALL_TRAINING, **options)["train"].columns[0]
        values = pq.read_table(tmp_path / "out" / "train" / "part-00000.parquet")["x"]
        # Arrow names the entries of lists, and Parquet names them otherwise.
        assert str(values.type).replace("element", "item") == column.dtype.replace("element", "item")
        return column.dtype, sorted(values.to_pylist(), key=lambda value: (value is None, value))

    return run_step


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize(
    ("types", "kind"),
    [
        (("int64", "double"), "double"),
        (("int32", "int64"), "int64"),
        (("float", "double"), "double"),
        (("uint8", "float"), "float"),
        (("null", "int64"), "int64"),
    ],
)
def test_numbers_get_a_type_that_holds_those_of_all_files(kept, types, kind, is_reversed):
    values = {"double": [0.5, None], "float": [1.5], "null": [None]}
    arrays = [pa.array(values.get(each, [1, 2**7]), pa.type_for_alias(each)) for each in types]
    expected = sorted(
        (value for array in arrays for value in array.to_pylist()), key=lambda value: (value is None, value)
    )
    assert kept(arrays[::-1] if is_reversed else arrays) == (kind, expected)


def test_lists_of_numbers_get_a_type_that_holds_those_of_all_files(kept):
    kind, values = kept([pa.array([[1, 2]]), pa.array([[1.5]]), pa.array([[3]])])
    assert "double" in kind
    assert values == [[1.0, 2.0], [1.5], [3.0]]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_value_that_would_change_is_a_wrong_row(kept, is_reversed):
    arrays = [pa.array([1, LARGE]), pa.array([1.5, 2.5])]
    name = "b" if is_reversed else "a"
    with pytest.raises(
        ValueError, match=rf"row 2 of {name}\.parquet: 'x' is {LARGE} \(int64\), which does not fit .*dou"
    ):
        kept(arrays[::-1] if is_reversed else arrays)


def test_a_value_that_would_change_is_skipped(kept, capsys):
    arrays = [pa.array([1, LARGE, 3, LARGE]), pa.array([1.5, 2.5])]
    assert kept(arrays, on_bad_row="skip") == ("double", [1.0, 1.5, 2.5, 3.0])
    assert "left out 2 rows that cannot be used, such as row 2 of a.parquet: 'x'" in capsys.readouterr().out


def test_a_text_in_a_column_of_integers_is_a_wrong_row(kept):
    with pytest.raises(ValueError, match=r"row 2 of b\.parquet: 'x' is two \(string\), which does not fit .* int64"):
        kept([pa.array([1, 2]), pa.array(["1", "two"])])


def test_types_without_a_common_form_are_refused(kept):
    with pytest.raises(ValueError, match=r"b\.parquet cannot be read: column 'x' has values of type list.* not int64"):
        kept([pa.array([1, 2]), pa.array([[1], [2]])])
