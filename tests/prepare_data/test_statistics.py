"""Mean and standard deviation of each feature."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer

from kfp_distributed.components.prepare_data.report import profile
from kfp_distributed.components.prepare_data.report.profile import MAXIMUM_FEATURES, feature_count
from kfp_distributed.components.summaries.moments import Moments
from kfp_distributed.storage.dataset import Column, DatasetManifest, mean_and_std
from kfp_distributed.trainers.runtime.data_loading.epoch_steps import scaling

NUMBERS = st.floats(-(2**20), 2**20, width=32) | st.just(float("nan"))


@given(st.lists(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=8), min_size=1, max_size=6))
def test_moments_of_parts_equal_those_of_all_numbers(parts):
    moments = Moments(2)
    for part in parts:
        moments.add(np.array(part, np.float32))
    rows = np.array([row for part in parts for row in part], np.float64).reshape(-1, 2)
    for feature, numbers in enumerate(rows.T):
        known = numbers[~np.isnan(numbers)]
        assert (moments.count[feature], moments.missing[feature]) == (len(known), len(numbers) - len(known))
        if not len(known):
            assert (moments.mean[feature], moments.deviation[feature], moments.std[feature]) == (0, 0, 1)
            continue
        assert moments.mean[feature] == pytest.approx(known.mean(), abs=1e-6)
        assert (moments.low[feature], moments.high[feature]) == (known.min(), known.max())
        expected = known.std() if known.min() < known.max() else 0
        assert moments.deviation[feature] == pytest.approx(expected, rel=1e-6, abs=1e-6)
        deviation = moments.deviation[feature]
        assert moments.std[feature] == (deviation if deviation >= np.finfo(np.float32).tiny else 1)


def test_a_small_deviation_far_from_zero_is_exact():
    moments, numbers = Moments(2), np.tile([[1e7, 1.0], [1e7 + 1, 2.0]], (1000, 1))
    for part in np.split(numbers, 10):
        moments.add(part)
    np.testing.assert_allclose(moments.mean, [1e7 + 0.5, 1.5], rtol=1e-15)
    np.testing.assert_allclose(moments.deviation, [0.5, 0.5], rtol=1e-12)


def test_equal_numbers_have_no_deviation_although_their_mean_is_rounded():
    moments = Moments()
    for rows in (3, 7, 10):
        moments.add(np.full(rows, 0.1, np.float32))
    assert (moments.deviation.tolist(), moments.std.tolist()) == ([0.0], [1.0])


@pytest.mark.parametrize("number", [1e-45, 1e-38])
def test_trainers_do_not_divide_by_a_deviation_that_processors_flush_to_0(number):
    moments = Moments()
    moments.add(np.array([0, 0, 0, 0, 0, 0, 0, 0, 0, number], np.float32))
    assert (0 < moments.deviation[0] < 1e-38, moments.std.tolist()) == (True, [1.0])


@pytest.mark.parametrize(
    ("column", "features"),
    [
        (Column("x", "number", "float32"), 1),
        (Column("x", "tensor", "float32", (30,)), 30),
        (Column("x", "tensor", "uint8", (30,)), 30),
        (Column("x", "tensor", "float32", (5, 3)), 15),
        (Column("x", "tensor", "uint8", (5, 3)), 1),
        (Column("x", "tensor", "float32", (64, 64, 3)), 3),
        (Column("x", "tensor", "uint8", (224, 224, 1)), 1),
        (Column("x", "tensor", "float32", (5, 3, 2)), 30),
        (Column("x", "tensor", "float32", (MAXIMUM_FEATURES,)), MAXIMUM_FEATURES),
        (Column("x", "tensor", "float32", (MAXIMUM_FEATURES + 1,)), 1),
        (Column("x", "tensor", "float32", (64, 65)), 1),
    ],
)
def test_number_of_features(column, features):
    assert feature_count(column) == features


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_a_matrix_is_scaled_as_its_columns_are(run, tmp_path):
    cancer = load_breast_cancer()
    columns = {f"x{number:02}": values for number, values in enumerate(cancer.data.T)}
    matrix = run(npz(tmp_path / "matrix.npz", label=cancer.target, x=cancer.data), "matrix")["train"]
    separate = run(npz(tmp_path / "separate.npz", label=cancer.target, **columns), "separate")["train"]
    assert matrix.columns[0].mean == tuple(column.mean for column in separate.columns)
    assert matrix.columns[0].std == tuple(column.std for column in separate.columns)
    np.testing.assert_array_equal(scaling(matrix), scaling(separate))
    assert np.shape(scaling(matrix)) == (4, 30)


def test_statistics_of_tensors_with_gaps_constants_and_channels(run, tmp_path, capsys):
    random = np.random.default_rng(0)
    series = random.normal([[0, 10, 200], [3, 4, 5]], [[1, 2, 30], [1, 1, 1]], (100, 2, 3)).astype(np.float32)
    series[:, 0, 2], series[::3, 1, 0] = np.nan, np.nan
    series[:, 1, 1] = 7
    image = random.integers([0, 100, 200], [50, 110, 256], (100, 4, 5, 3)).astype(np.uint8)
    wide = random.normal(5, 2, (100, MAXIMUM_FEATURES + 1)).astype(np.float32)
    arrays = {"series": series, "image": image, "grey": image[..., 0], "wide": wide}
    source = npz(tmp_path / "rows.npz", label=np.arange(100) % 2, **arrays)
    manifest = run(source, validation_fraction=0, test_fraction=0, shards=1)["train"]
    assert DatasetManifest.from_json((tmp_path / "out" / "train" / "dataset.json").read_text()) == manifest
    columns = {column.name: column for column in manifest.columns}
    mean, std, exact = np.zeros((2, 3)), np.ones((2, 3)), series.astype(float)
    for feature in ((0, 0), (0, 1), (1, 0), (1, 2)):
        mean[feature], std[feature] = np.nanmean(exact[(..., *feature)]), np.nanstd(exact[(..., *feature)])
    mean[1, 1] = 7
    expected = {
        "series": (mean.ravel(), std.ravel()),
        "image": (image.mean((0, 1, 2)), image.std((0, 1, 2))),
        "grey": (image[..., 0].mean(), image[..., 0].std()),
        "wide": (wide.mean(dtype=float), wide.std(dtype=float)),
    }
    for name, values in expected.items():
        np.testing.assert_allclose((columns[name].mean, columns[name].std), values, rtol=1e-9, err_msg=name)
    rows = [np.tile(expected[name], arrays[name][0].size // np.size(expected[name][0])) for name in ("series", "image")]
    np.testing.assert_allclose(mean_and_std(manifest)[:, :66], np.hstack(rows), rtol=1e-6)
    warnings = [line for line in capsys.readouterr().out.splitlines() if "4,096" in line]
    assert [line.split("'")[1] for line in warnings] == ["wide"]
    assert "column &#39;wide&#39; has 4,097 elements" in (tmp_path / "out" / "overview.html").read_text()


def test_images_that_are_described_in_parts_have_the_same_profile(run, tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (300, 8, 8, 3), np.uint8)
    source = npz(tmp_path / "data.npz", image=pixels, age=generator.normal(size=300), label=np.arange(300) % 3)
    at_once = run(source, "at-once")["train"]
    monkeypatch.setattr(profile, "MAXIMUM_NUMBERS", 100)
    monkeypatch.setattr(profile, "PART_NUMBERS", 1000)
    in_parts = run(source, "in-parts")["train"]
    assert (in_parts.content, in_parts.shards) == (at_once.content, at_once.shards)
    for column, other in zip(in_parts.columns, at_once.columns, strict=True):
        np.testing.assert_allclose((column.mean, column.std), (other.mean, other.std), rtol=1e-12)


@given(
    numbers=st.lists(st.one_of(st.floats(-1e6, 1e6, width=32), st.just(float("nan"))), max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=4),
)
def test_merged_statistics_are_those_of_all_numbers(numbers, cuts):
    whole, merged = Moments(), Moments()
    whole.add(np.array(numbers, np.float32))
    for part in np.split(np.array(numbers, np.float32), sorted(cuts)):
        moments = Moments()
        moments.add(part)
        merged.merge(moments)
    for name in ("count", "missing", "low", "high"):
        assert getattr(merged, name) == getattr(whole, name)
    spread = float(whole.high[0] - whole.low[0]) if whole.count else 0
    assert (merged.mean[0], merged.deviation[0]) == (
        pytest.approx(whole.mean[0], rel=1e-12, abs=1e-12 * spread),
        pytest.approx(whole.deviation[0], rel=1e-9, abs=1e-7 * spread),
    )


def test_merged_statistics_of_large_numbers_that_are_close_keep_their_digits():
    merged = Moments(2)
    for begin in range(0, 1000, 100):
        moments = Moments(2)
        moments.add(np.arange(begin, begin + 100)[:, None] % 2 + [[2.0**40, 1.0]])
        merged.merge(moments)
    assert (merged.mean.tolist(), merged.deviation.tolist()) == ([2**40 + 0.5, 1.5], [0.5, 0.5])
