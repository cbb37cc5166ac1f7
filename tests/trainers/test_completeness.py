"""Marks of complete files, on a real file system."""

import sys

import pytest

from kfp_distributed.trainers.runtime.checkpoints.completeness import RenamedFiles, is_written, named_by_tensorflow

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs inotify and /proc")


def test_files_and_folders_that_are_renamed_are_complete(tmp_path):
    folder = tmp_path / "checkpoints"
    (folder / "old").mkdir(parents=True)
    renamed = RenamedFiles(folder)
    (folder / "written").write_text("1")
    for target in (folder / "file", folder / "old" / "file"):
        (tmp_path / "unfinished").write_text("1")
        (tmp_path / "unfinished").rename(target)
    (tmp_path / "step" / "part").mkdir(parents=True)
    for file in ("part/file", "other"):
        (tmp_path / "step" / file).write_text("1")
    (tmp_path / "step").rename(folder / "step")
    renames = {folder / "file": 1, folder / "old" / "file": 2, folder / "step" / "other": 3}
    assert renamed.read() == renames | {folder / "step" / "part" / "file": 3}
    (folder / "step" / "part" / "file").write_text("2")
    assert renamed.read() == renames
    (folder / "file").unlink()
    (folder / "file").symlink_to("old")
    assert renamed.read() == {file: number for file, number in renames.items() if file != folder / "file"}


def test_the_file_checkpoint_of_tensorflow_names_what_is_complete(tmp_path):
    import tensorflow as tf

    manager = tf.train.CheckpointManager(tf.train.Checkpoint(x=tf.Variable(1.0)), str(tmp_path), max_to_keep=2)
    manager.save()
    manager.save()
    (tmp_path / "ckpt-3.index").write_text("half")
    (tmp_path / "ckpt-10.index").write_text("half")
    names = {file.name for file in tmp_path.iterdir() if named_by_tensorflow(file)}
    kept = {f"ckpt-{number}.{suffix}" for number in (1, 2) for suffix in ("index", "data-00000-of-00001")}
    assert names == {"checkpoint", *kept}


def test_a_file_is_written_while_it_is_open_for_writing(tmp_path):
    file = tmp_path / "file"
    assert not is_written(tmp_path)
    with file.open("w"):
        assert is_written(tmp_path)
        assert not is_written(tmp_path / "other")
    with file.open():
        assert not is_written(tmp_path)
