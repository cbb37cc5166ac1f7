"""The data of a checkpoint beside those of a training, as plain values."""

import json
from dataclasses import replace

import pytest

from kfp_distributed.storage.dataset import Column, DatasetManifest, Label
from kfp_distributed.trainers.resumed_network import end_if_other_data, keep_scales, record_data

AGE = Column("age", "number", "float32", mean=2.5, std=1.5)
SERIES = Column("series", "tensor", "float32", (2,), mean=(1.0, 2.0), std=(3.0, 3.0))


def data(*columns):
    return record_data(DatasetManifest("train", columns, Label("kind", ("a", "b")), (), (0, 0), 0, "x"))


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ((AGE, replace(SERIES, mean=(1.0 + 1e-9, 2.0))), ""),
        ((replace(AGE, mean=7.0), SERIES), "age (mean 2.5, now 7; std 1.5, now 1.5)"),
        ((AGE, replace(SERIES, mean=(1.0, 5.0))), "series (mean 1 to 2, now 1 to 5; std 3, now 3)"),
        # A checkpoint of version 0.1 has one mean for all elements.
        ((AGE, replace(SERIES, mean=1.5, std=3.0)), "series (mean 1 to 2, now 1.5; std 3, now 3)"),
    ],
)
def test_other_statistics_are_named(columns, named):
    line = end_if_other_data(data(AGE, SERIES), data(*columns))
    assert line.partition("new values: ")[2] == named


@pytest.mark.parametrize(
    ("columns", "classes", "named"),
    [
        ((replace(AGE, name="size"), SERIES), ("a", "b"), ("columns", "'age'", "'size'")),
        ((AGE, SERIES), ("b", "a"), ("classes", "'a'", "'b'")),
    ],
    ids=["column", "order of classes"],
)
def test_other_columns_and_classes_are_refused(columns, classes, named):
    other = DatasetManifest("train", columns, Label("kind", classes), (), (0, 0), 0, "x")
    with pytest.raises(SystemExit) as raised:
        end_if_other_data(data(AGE, SERIES), record_data(other))
    assert [word for word in named if word not in str(raised.value)] == []


CLASSES = Label("kind", ("a", "b"))
PRICE = Label("price", (), "regression", 100.0, 20.0)


def manifest_of(label):
    return DatasetManifest("train", (AGE,), label, (), (0,) * len(label.classes), 0, "x")


@pytest.mark.parametrize(
    ("saved", "now", "tasks"),
    [(CLASSES, PRICE, "'classification', now 'regression'"), (PRICE, CLASSES, "'regression', now 'classification'")],
)
def test_a_checkpoint_of_another_task_is_refused(saved, now, tasks):
    with pytest.raises(SystemExit, match=f"was made for the task {tasks}"):
        keep_scales(record_data(manifest_of(saved)), manifest_of(now), leads=True)


def test_a_checkpoint_without_a_task_is_of_a_classification():
    data = json.loads(record_data(manifest_of(CLASSES)))
    earlier = json.dumps({key: data[key] for key in ("columns", "classes")})
    assert keep_scales(earlier, manifest_of(CLASSES), leads=True) == manifest_of(CLASSES)
    with pytest.raises(SystemExit, match="'classification', now 'regression'"):
        keep_scales(earlier, manifest_of(PRICE), leads=True)


@pytest.mark.parametrize("leads", [True, False])
def test_numbers_to_predict_keep_the_scale_of_the_checkpoint(capsys, leads):
    other = manifest_of(replace(PRICE, mean=7.0, std=3.0))
    assert keep_scales(record_data(manifest_of(PRICE)), other, leads) == manifest_of(PRICE)
    line = capsys.readouterr().out
    assert [number in line for number in ("100", "7", "20", "3")] == [leads] * 4
    assert keep_scales(record_data(manifest_of(PRICE)), manifest_of(PRICE), leads) == manifest_of(PRICE)
    assert keep_scales("", other, leads) == other
    assert capsys.readouterr().out == ""


LOG = replace(AGE, log_unit=0.5, log_mean=7.0, log_std=8.0)


@pytest.mark.parametrize(("before", "now", "line"), [(AGE, LOG, "are not scaled"), (LOG, AGE, "stay scaled")])
def test_a_column_keeps_whether_its_logarithms_are_scaled(before, now, line, capsys):
    saved, new = (replace(manifest_of(CLASSES), columns=(column,)) for column in (before, now))
    kept = keep_scales(record_data(saved), new, leads=True)
    assert f"numbers of age {line} by logarithms" in capsys.readouterr().out
    assert [column.log_unit for column in kept.columns] == [before.log_unit]
    assert end_if_other_data(record_data(saved), record_data(kept)) == ""
    assert keep_scales(record_data(saved), saved, leads=True) == saved


def test_other_logarithms_are_named():
    line = end_if_other_data(data(LOG), data(replace(LOG, log_unit=1.5)))
    assert line.endswith("age (log_unit 0.5, now 1.5; log_mean 7, now 7; log_std 8, now 8)")


def test_a_checkpoint_of_a_version_without_logarithms():
    earlier = json.loads(data(AGE))
    earlier["columns"] = [
        {key: value for key, value in column.items() if "log" not in key} for column in earlier["columns"]
    ]
    new = replace(manifest_of(CLASSES), columns=(LOG,))
    kept = keep_scales(json.dumps(earlier), new, leads=False)
    assert kept.columns[0].log_unit is None
    assert end_if_other_data(json.dumps(earlier), record_data(kept)) == ""


def test_another_mean_is_reported_whatever_its_size(capsys):
    """The means of times differ by far less than their size."""
    for mean, moved, std in ((1.7e9, 1.7e9 + 20, 15.0), (2e-49, 3e-49, 1e-49)):
        saved, new = (manifest_of(Label("time", (), "regression", value, std)) for value in (mean, moved))
        assert keep_scales(record_data(saved), new, leads=True) == saved
        line = capsys.readouterr().out
        assert f"time keeps its mean {mean:.10g} (of the new data {moved:.10g})" in line
        keep_scales(record_data(saved), saved, leads=True)
        assert not capsys.readouterr().out
