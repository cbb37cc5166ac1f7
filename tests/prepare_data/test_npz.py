"""Reading of .npz files, also of damaged and hostile ones."""

import io
import pickle
import zipfile
import zlib

import numpy as np
import pyarrow as pa
import pytest

from kfp_distributed.components.prepare_data.pieces.piece_files import Pieces
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.scan.scanner import scan
from kfp_distributed.components.prepare_data.tables import open_source as module
from kfp_distributed.components.prepare_data.tables.open_source import open_source
from kfp_distributed.storage.dataset import Column

pytestmark = pytest.mark.takes(2)

LABELLED = Options(label_column="kind")


def rows_of(path, scratch, options=LABELLED):
    """The columns of a source and its rows as lists of values, label first."""
    source = open_source(path, options, scratch)
    tables = [pa.Table.from_batches([batch]) for _, (batch, _) in source.batches()]
    return source.columns, pa.concat_tables(tables).to_pydict()


def number(name):
    return Column(name, "number", "float32")


def npz(file, **arrays):
    data = io.BytesIO()
    np.savez_compressed(data, **arrays)
    return file("data.npz", data.getvalue())


def npy(values):
    data = io.BytesIO()
    np.save(data, np.array(values))
    return data.getvalue()


def archive_of(path, members, compression=zipfile.ZIP_DEFLATED, **changes):
    """Write members (name, bytes), and change attributes of the last one's entry in the archive's directory."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members:
            archive.writestr(name, data)
        for key, value in changes.items():
            setattr(archive.infolist()[-1], key, value)
    return path


def unpacked_sizes(scratch):
    return sorted(file.stat().st_size for file in scratch.rglob("*") if file.is_file())


KIND = ("kind.npy", npy([0, 1]))
X = ("x.npy", npy([1.5, 2.5]))


@pytest.fixture
def scratch(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def test_npz(file, tmp_path):
    path = npz(
        file,
        kind=np.array([3.0, np.nan], ">f8"),
        image=np.arange(8, dtype=np.uint8).reshape(2, 2, 2),
        vector=np.array([[0.5, 1], [2, np.nan]]),
        mask=np.array([[True, False], [False, True]]),
        age=np.array([1, 2], ">i4"),
        town=np.array(["Ulm", "Bern"]),
    )
    columns, rows = rows_of(path, tmp_path)
    assert columns == (
        Column("image", "tensor", "uint8", (2, 2)),
        Column("vector", "tensor", "float32", (2,)),
        Column("mask", "tensor", "uint8", (2,)),
        number("age"),
        Column("town", "category", "int32"),
    )
    assert np.isnan(rows.pop("vector")[1][1])
    assert rows == {
        "kind": ["3", None],
        "image": [[0, 1, 2, 3], [4, 5, 6, 7]],
        "mask": [[1, 0], [0, 1]],
        "age": [1, 2],
        "town": ["Ulm", "Bern"],
    }


def test_npz_is_read_in_parts(file, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BATCH_BYTES", 2**20)
    values = np.random.default_rng(0).normal(size=(3000, 100))
    path = npz(file, x=values, kind=np.arange(3000) % 2)
    source = open_source(path, LABELLED, tmp_path)
    batches = [batch for _, (batch, _) in source.batches()]
    assert len(batches) > 2
    read = np.concatenate([batch.column("x").flatten().to_numpy().reshape(-1, 100) for batch in batches])
    np.testing.assert_array_equal(read, values)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"kind": [1, 2], "x": [1, 2, 3]},
            r"array 'x' is int64 \[3\]: .*the 1-D labels 'kind' \[2\].* drop_columns",
        ),
        ({"kind": [[0, 1]], "x": [1]}, r"array 'kind' is int64 \[1, 2\]"),
        (
            {"kind": [1], "x": np.array([{}], object)},
            "data.npz cannot be read: its member 'x.npy' holds Python objects: save arrays of numbers",
        ),
        (
            {"kind": np.array(["a", "b"], object), "x": [1, 2]},
            "its member 'kind.npy' holds Python objects: .*astype.str",
        ),
        ({"kind": [1], "x": np.zeros((1, 0))}, r"array 'x' is float64 \[1, 0\]: "),
        ({"kind": [1], "x": np.array([1j])}, r"array 'x' is complex128 \[1\]: it must have numbers"),
        ({"kind": np.eye(2), "x": [1, 2]}, r"array 'kind' is float64 \[2, 2\]: save it as 1-D, by argmax\(axis=1\)"),
        ({"kind": [1, 2], "x": np.array(["2024-01-31"] * 2, "M8[D]")}, r"array 'x' has dates: save them as texts"),
        ({"kind": [1, 2], "x": 3}, r"array 'x' is int64 \[\]"),
        (
            {"kind": [1], "x": np.array([["a"]])},
            r"data.npz: array 'x' is <U1 \[1, 1\]: .* 1-D with texts",
        ),
        ({"x": [1]}, r"no column 'kind' in data.npz; it has \['x'\]"),
    ],
)
def test_an_unusable_npz_file_is_refused(file, arrays, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        open_source(npz(file, **arrays), LABELLED, tmp_path)


def test_an_archive_of_other_files_is_refused_without_unpickling(file, tmp_path):
    with zipfile.ZipFile(file("data.npz", ""), "w") as archive:
        archive.writestr("kind.npy", pickle.dumps(ValueError))
        archive.writestr("x.npy", npy([1.0]))
    with pytest.raises(ValueError, match=r"data.npz cannot be read: its member 'kind.npy' is not a NumPy array: save"):
        open_source(tmp_path / "data.npz", LABELLED, tmp_path)


def test_numbers_of_80_bits_are_read(file, tmp_path):
    path = npz(file, kind=np.array(["a", "b"]), x=np.array([1.5, 2], np.longdouble))
    assert rows_of(path, tmp_path)[1] == {"kind": ["a", "b"], "x": [1.5, 2]}


def test_a_damaged_npz_is_refused(file, tmp_path):
    path = npz(file, kind=np.arange(1000), x=np.random.default_rng(0).normal(size=1000))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"data\.npz cannot be read"):
        scan(open_source(path, LABELLED, tmp_path), Pieces(tmp_path / ".pieces", 0, 0))
    path.write_bytes(data[:100])
    with pytest.raises(ValueError, match=r"data\.npz cannot be read"):
        open_source(path, LABELLED, tmp_path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("force_zip64", [False, True])
def test_stored_deflated_and_zip64_members_are_read(tmp_path, scratch, compression, force_zip64):
    matrix = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    with zipfile.ZipFile(tmp_path / "data.npz", "w", compression) as archive:
        for name, data in (KIND, ("x.npy", npy(matrix))):
            with archive.open(name, "w", force_zip64=force_zip64) as stream:
                stream.write(data)
    assert rows_of(tmp_path / "data.npz", scratch) == (
        (Column("x", "tensor", "float32", (3,)),),
        {"kind": ["0", "1"], "x": [[0, 1, 2], [3, 4, 5]]},
    )


@pytest.mark.parametrize(
    "name",
    ["{secret}", "../secret.npy", "a/x.npy", "a\\x.npy", "a/", "README.txt", "x.NPY", ".npy", "x.npy\0y.npy", ""],
)
def test_a_member_without_a_plain_name_is_refused(tmp_path, scratch, name):
    (tmp_path / "secret.npy").write_bytes(npy([7.0, 8.0]))
    name = name.format(secret=tmp_path / "secret.npy")
    # Only the archive's directory gets the name, because zipfile would change some of them.
    path = archive_of(tmp_path / "data.npz", [KIND, X, ("y.npy", X[1])], filename=name)
    with pytest.raises(ValueError, match=r"data\.npz cannot be read: its member .* is not named NAME\.npy") as error:
        open_source(path, LABELLED, scratch)
    assert repr(name) in str(error.value)
    assert unpacked_sizes(scratch) == []


def test_two_members_of_one_name_are_refused(tmp_path, scratch):
    path = archive_of(tmp_path / "data.npz", [KIND, X, ("y.npy", X[1])], filename="x.npy")
    with pytest.raises(ValueError, match=r"data\.npz cannot be read: its member 'x\.npy' occurs 2 times"):
        open_source(path, LABELLED, scratch)


def test_dropped_arrays_are_neither_unpacked_nor_read(tmp_path, scratch):
    members = [("bomb.npy", bytes(10**8)), KIND, ("objects.npy", pickle.dumps(ValueError)), X]
    path = archive_of(tmp_path / "data.npz", members)
    options = Options("kind", drop_columns=("bomb", "objects"))
    assert rows_of(path, scratch, options) == ((number("x"),), {"kind": ["0", "1"], "x": [1.5, 2.5]})
    assert unpacked_sizes(scratch) == [len(KIND[1]), len(X[1])]


def header_of(shape, descr="<f8"):
    """The header of an array, without its values."""
    data = io.BytesIO()
    np.lib.format.write_array_header_1_0(data, {"descr": descr, "fortran_order": False, "shape": shape})
    return data.getvalue()


@pytest.mark.parametrize(
    ("data", "changes", "message"),
    [
        (
            header_of((2**40,)),
            {"file_size": 2**43 + 128},
            r"its arrays have 8,796,093,022,\d+ bytes, but the step's disk",
        ),
        (
            header_of((2**40,)),
            {},
            r"'x\.npy' has 128 bytes, but .* float64 \[1099511627776\] of 8,796,093,022,336 bytes",
        ),
        (header_of((2,)) + bytes(24), {}, r"'x\.npy' has 152 bytes, but .* float64 \[2\] of 144 bytes"),
        (header_of((2,)) + bytes(16), {"file_size": 10**6}, r"has 1,000,000 bytes, but .* of 144 bytes"),
        (header_of((10**6,)) + bytes(16), {"file_size": 8 * 10**6 + 128}, r"'x\.npy' ends 7,999,984 bytes early"),
        (header_of((2,)) + bytes(10**8), {"file_size": 144}, "Bad CRC-32 for file 'x.npy'"),
        (header_of((-1, -2)) + bytes(16), {}, r"declares an array float64 \[-1, -2\]"),
        (header_of((10**12,), "<U0"), {}, "'x.npy' holds values of 0 bytes"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(10**6), {}, "'x.npy' is not a NumPy array"),
        (b"\x93NUMPY\x01\x00\x04\x00(((\n", {}, "'x.npy' is not a NumPy array"),
        (X[1], {"flag_bits": 1}, "'x.npy' is encrypted"),
        (X[1], {"compress_type": zipfile.ZIP_BZIP2}, "'x.npy' has a compression that NumPy does not write"),
    ],
)
def test_a_member_of_another_form_than_it_declares_is_refused(tmp_path, scratch, data, changes, message):
    path = archive_of(tmp_path / "data.npz", [KIND, ("x.npy", data)], **changes)
    with pytest.raises(ValueError, match=f"data.npz cannot be read: .*{message}"):
        open_source(path, LABELLED, scratch)
    assert sum(unpacked_sizes(scratch)) < 1000


def test_no_more_is_unpacked_than_the_archive_declares(tmp_path, scratch):
    data = header_of((2,)) + np.array([1.5, 2.5]).tobytes()
    changes = {"file_size": len(data), "CRC": zlib.crc32(data)}
    path = archive_of(tmp_path / "data.npz", [KIND, ("x.npy", data + bytes(10**8))], **changes)
    assert rows_of(path, scratch) == ((number("x"),), {"kind": ["0", "1"], "x": [1.5, 2.5]})
    assert unpacked_sizes(scratch) == sorted([len(KIND[1]), len(data)])
