"""The step from the source to the artifacts."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from kfp import dsl

from kfp_distributed import components
from kfp_distributed.components.prepare_data.component import prepare_data
from kfp_distributed.components.prepare_data.tables import open_source as module
from kfp_distributed.storage.dataset import DatasetManifest, input_shape

pytestmark = pytest.mark.figures


def listing(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_digits(run, tmp_path, capsys):
    manifests = run("digits", shards=2)
    assert {split: (manifest.rows, set(manifest.class_counts)) for split, manifest in manifests.items()} == {
        "train": (1438, {139, 141, 142, 143, 144, 145, 146, 147}),
        "validation": (179, {17, 18}),
        "test": (180, {18}),
    }
    assert input_shape(manifests["train"]) == (8, 8, 1)
    assert manifests["train"].label.classes == tuple("0123456789")
    assert listing(tmp_path / "out") == [
        "overview.html",
        "test",
        "test/dataset.json",
        "test/part-00000.parquet",
        "train",
        "train/dataset.json",
        "train/part-00000.parquet",
        "train/part-00001.parquet",
        "validation",
        "validation/dataset.json",
        "validation/part-00000.parquet",
    ]
    page = (tmp_path / "out" / "overview.html").read_text()
    assert page.count("<img ") == 60
    assert len(page.encode()) < 2_000_000
    assert capsys.readouterr().out.splitlines() == [
        "read 1,797 rows, all",
        "task: classification, because label_column 'label' has 10 different whole numbers",
        "train: 1,438 rows in 2 shards",
        "validation: 179 rows in 1 shard",
        "test: 180 rows in 1 shard",
    ]


def test_a_library_without_the_digits_file_fails_with_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "DIGITS_FILE", tmp_path / "digits.csv.gz")
    outputs = [artifact(dsl.Dataset, tmp_path / name) for name in ("train", "validation", "test", "overview")]
    with pytest.raises(SystemExit, match=r"^\nFileNotFoundError: .*digits\.csv\.gz not found"):
        prepare_data(*outputs, source="digits")
    assert listing(tmp_path) == []


def test_a_split_with_the_fraction_0_is_a_dataset_without_rows(run, tmp_path):
    manifest = run("digits", test_fraction=0)["test"]
    assert (manifest.rows, manifest.shards, manifest.class_counts) == (0, (), (0,) * 10)
    assert DatasetManifest.from_json((tmp_path / "out" / "test" / "dataset.json").read_text()) == manifest
    assert listing(tmp_path / "out" / "test") == ["dataset.json"]


def test_a_second_run_replaces_the_first(run, tmp_path):
    run("digits", shards=5)
    run("digits", shards=1)
    assert listing(tmp_path / "out" / "train") == ["dataset.json", "part-00000.parquet"]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("x,label\n" + "1,a\n2,b\n" * 9 + "3\n", {}, "row 20 of data.csv has 1 values"),
        ("x,label\n" + "1,a\n2,b\n" * 9 + "3,c\n", {}, "'c' has one row only"),
        ("x,label\n" + "1,a\n2,b\n" * 4, {"test_fraction": 0.01}, "test_fraction 0.01 of 8 rows is less than one row"),
        ("x,label\n" + "1,a\n2,b\n" * 9, {"shards": 20}, "lower shards"),
        ("x,label\n" + "1,a\n2,b\n" * 9, {"label_column": "lable"}, r"label_column 'lable'.* it has \['x', 'label'\]"),
    ],
)
def test_unusable_data_is_refused_before_anything_is_written(run, file, tmp_path, text, options, message):
    with pytest.raises(ValueError, match=message):
        run(file("data.csv", text), **options)
    assert listing(tmp_path) == ["data.csv"]


def test_a_disk_error_leaves_no_partial_output(run, tmp_path):
    (tmp_path / "out").write_text("a file where a folder should be")
    with pytest.raises(FileExistsError):
        run("digits")
    assert listing(tmp_path) == ["out"]


def artifact(kind, path):
    return kind(uri=str(path))


def test_the_component(tmp_path):
    datasets = [artifact(dsl.Dataset, tmp_path / split) for split in ("train", "validation", "test")]
    overview = artifact(dsl.HTML, tmp_path / "overview")
    prepare_data(*datasets, overview, source="digits", shards=2.0, split={"validation_fraction": "0.2"})
    assert [dataset.metadata for dataset in datasets] == [
        {"rows": rows, "task": "classification", "classes": 10} for rows in (1258, 359, 180)
    ]
    with pytest.raises(SystemExit, match=r"ValueError: shards is 2\.5"):
        prepare_data(*datasets, overview, source="digits", shards=2.5)
    with pytest.raises(SystemExit, match=r"ValueError: split: .* and test_fraction 1: their sum must be below 1"):
        prepare_data(*datasets, overview, source="digits", split={"test_fraction": 1})
    with pytest.raises(SystemExit, match=r"ValueError: split: 'fraction' = 0\.2 is not a known key"):
        prepare_data(*datasets, overview, source="digits", split={"fraction": 0.2})
    with pytest.raises(SystemExit, match=r"ValueError: split\.group_column has the placeholder '\{\{\$\.x"):
        prepare_data(*datasets, overview, source="digits", split={"group_column": "{{$.x}}"})


def test_a_pipeline_without_a_source_is_refused_when_it_is_composed():
    with pytest.raises(TypeError, match=r"prepare-data\(\) missing 1 required argument: source"):

        @dsl.pipeline
        def forgotten():
            components.prepare_data(label_column="species")


@pytest.mark.parametrize(
    ("source", "fingerprint", "begins"),
    [
        ("digits", "", []),
        ("data.csv", "", ["source_fingerprint is empty"]),
        ("data.csv", "sha256:1 files=1 bytes=2", ["source_fingerprint of data.csv: sha256:1 files=1 bytes=2"]),
    ],
)
def test_the_log_says_what_the_cache_knows_of_the_source(
    file, tmp_path, monkeypatch, capsys, source, fingerprint, begins
):
    monkeypatch.chdir(tmp_path)
    file("data.csv", "x,label\n" + "1,a\n2,b\n" * 10)
    outputs = ("train_dataset", "validation_dataset", "test_dataset", "overview")
    artifacts = {
        name: SimpleNamespace(path=str(tmp_path / "out" / name), uri=str(tmp_path / "out" / name), metadata={})
        for name in outputs
    }
    prepare_data(**artifacts, source=source, shards=1, source_fingerprint=fingerprint)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("source_fingerprint")]
    assert [line[: len(begin)] for line, begin in zip(lines, begins, strict=True)] == begins
    manifest = DatasetManifest.from_json((tmp_path / "out" / "train_dataset" / "dataset.json").read_text())
    assert manifest.source_fingerprint == fingerprint


@pytest.mark.takes(2)
def test_a_cancelled_step_leaves_no_files(tmp_path):
    """SIGTERM comes while the rows are read."""
    source, temporary = tmp_path / "data.csv", tmp_path / "temporary"
    source.write_text("x,label\n" + "1,a\n2,b\n" * 5_000_000)
    temporary.mkdir()
    program = f"""
from types import SimpleNamespace
from kfp_distributed.components.prepare_data.component import prepare_data
outputs = ("train_dataset", "validation_dataset", "test_dataset", "overview")
artifacts = {{name: SimpleNamespace(path=(p := r"{tmp_path}/out/" + name), uri=p, metadata={{}}) for name in outputs}}
prepare_data(**artifacts, source=r"{source}")
"""
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.DEVNULL)
    while not list(tmp_path.glob("out/.prepare-data-*/pieces-*")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 128 + signal.SIGTERM
    assert (list(temporary.iterdir()), (tmp_path / "out").exists()) == ([], False)


@pytest.mark.takes(4)
@pytest.mark.parametrize("limit", [100_000, 3_000_000])
def test_a_full_disk_leaves_no_files(tmp_path, limit):
    """A file may have `limit` bytes: one of the pieces of the rows, or a shard that is written from them, has more."""
    source, temporary = tmp_path / "data.csv", tmp_path / "temporary"
    source.write_text("x,y,label\n" + "".join(f"{i},{i * 0.37},{'ab'[i % 2]}\n" for i in range(200_000)))
    temporary.mkdir()
    program = f"""
import resource
from types import SimpleNamespace
from kfp_distributed.components.prepare_data.component import prepare_data
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
outputs = ("train_dataset", "validation_dataset", "test_dataset", "overview")
artifacts = {{name: SimpleNamespace(path=(p := r"{tmp_path}/out/" + name), uri=p, metadata={{}}) for name in outputs}}
prepare_data(**artifacts, source=r"{source}", shards=1)
"""
    environment = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "OSError: [Errno 27] File too large" in done.stderr.splitlines()[-1]
    assert (list(temporary.iterdir()), (tmp_path / "out").exists()) == ([], False)
