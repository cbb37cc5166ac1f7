"""Whether a restored checkpoint is rejected, mostly by a process that stores none."""

from types import SimpleNamespace

import pytest

from kfp_distributed.storage import open_store
from kfp_distributed.storage.errors import StoreAway
from kfp_distributed.trainers.programs.program import TRAINERS, parse_program
from kfp_distributed.trainers.runtime import entry
from kfp_distributed.trainers.runtime.checkpoints import folder_uploads
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import list_checkpoints, save_checkpoint
from kfp_distributed.trainers.runtime.lifecycle.rejection import RestoredCheckpoint, without_checkpoint


@pytest.fixture
def stores(tmp_path):
    """The stores of two checkpoints and of their metrics."""
    checkpoints, metrics = open_store(str(tmp_path / "checkpoints")), open_store(str(tmp_path / "metrics"))
    (tmp_path / "local").mkdir()
    for text in ("one", "two"):
        (tmp_path / "local" / "weights").write_text(text)
        save_checkpoint(checkpoints, tmp_path / "local")
    metrics.write("training.json", b"1")
    checkpoints.write("00000003/weights", b"left by an earlier start")
    return checkpoints, metrics


def test_a_checkpoint_after_which_nothing_was_stored_is_rejected(stores, capsys):
    assert RestoredCheckpoint(*stores, "00000002", stores=False).reject()
    assert list_checkpoints(stores[0]).rejected == ["00000002"]
    assert "the next start gets checkpoint 00000001" in capsys.readouterr().out


@pytest.mark.parametrize(("store", "key"), [(0, "00000004/weights"), (1, "training.json")])
def test_progress_of_the_leader_proves_that_the_checkpoint_was_good(stores, store, key):
    restored = RestoredCheckpoint(*stores, "00000002", stores=False)
    stores[store].write(key, b"2")
    assert not restored.reject()
    assert list_checkpoints(stores[0]).rejected == []


def test_steps_after_which_nothing_was_stored_prove_nothing(stores):
    stores[1].write("training.json", b'{"epochs": [], "steps": [{"step": 1}]}')
    restored = RestoredCheckpoint(*stores, "00000002", stores=False)
    stores[1].write("training.json", b'{"epochs": [], "steps": [{"step": 1}, {"step": 2}]}')
    assert restored.reject()


def test_without_a_restored_checkpoint_none_is_rejected(stores):
    assert not RestoredCheckpoint(*stores, "", stores=False).reject()


def fail_before():
    with without_checkpoint():
        raise RuntimeError("no GPU")


def fail_after():
    with without_checkpoint():
        pass
    raise RuntimeError("cannot load")


def fail_in_the_store():
    raise StoreAway("http://store:9000", "models", "config.json", "no answer")


@pytest.mark.parametrize(("fail", "rejected"), [(fail_before, []), (fail_after, ["00000002"]), (fail_in_the_store, [])])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_only_what_follows_the_restore_is_the_fault_of_a_checkpoint(stores, monkeypatch, trainer, fail, rejected):
    monkeypatch.setattr(folder_uploads, "poll_folders", list)
    monkeypatch.setattr(entry, "load_function", lambda _: lambda **_: fail())
    program = parse_program({"trainer": trainer})
    job = SimpleNamespace(parameters={"base_model": "/model"} if trainer == "language_model" else {})
    job.validation_uri = job.tensorboard = ""
    replica = SimpleNamespace(job=job, program=program, is_needed=False, name="worker-0", leads=True, elastic=False)
    restored = RestoredCheckpoint(*stores, "00000002", stores=True)
    try:
        assert entry.run_program(replica, dict.fromkeys(entry.FOLDERS, ""), restored.reject) == 144
    except (RuntimeError, StoreAway):
        assert not rejected
    finally:
        with without_checkpoint():
            pass
    assert list_checkpoints(stores[0]).rejected == rejected
