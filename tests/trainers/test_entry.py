"""Functions and commands of users in replica processes."""

import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

import psutil
import pytest

from kfp_distributed.components.model_formats.quiet_import import STARTUP_REMARK
from kfp_distributed.storage import open_store
from kfp_distributed.storage.dataset import DatasetManifest, read_batches
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest, verify_model
from kfp_distributed.storage.provenance import training_data
from kfp_distributed.trainers import train_specification
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import complete_checkpoints, save_checkpoint
from kfp_distributed.trainers.runtime.job_description import (
    CHECKPOINT_REJECTED,
    PEER_LOST,
    PROGRAM_CODE_RESERVED,
    STORE_AWAY,
    STORE_UNREACHED,
)

pytestmark = pytest.mark.takes(52)


def note_rows(train_dir, validation_dir, model_dir, metrics_dir, notes: str):
    import json
    import os
    import time
    from pathlib import Path

    import pyarrow.parquet as pq

    name, noted = os.environ["KFP_DISTRIBUTED_REPLICA"], {"task": json.loads(os.environ["TF_CONFIG"])["task"]}
    for split, folder in ("train", train_dir), ("validation", validation_dir):
        assert os.environ[f"KFP_DISTRIBUTED_{split.upper()}_DIR"] == folder
        tables = [pq.read_table(file) for file in sorted(Path(folder).glob("*.parquet"))]
        noted[split] = [row for table in tables for row in table["image"].to_pylist()]
    Path(notes, name).write_text(json.dumps(noted))
    # The job ends with its leader, so that waits for the others.
    while name == "worker-0" and len(list(Path(notes).iterdir())) < 3:
        time.sleep(0.05)
    Path(model_dir, "sub").mkdir()
    Path(model_dir, "sub", "weights").write_text(name)
    Path(metrics_dir, "training.json").write_text(json.dumps({"replica": name, "epochs": [{"epoch": 1, "loss": 0.5}]}))


def test_a_function_gets_the_rows_of_its_rank_and_the_leader_saves_the_model(make_replicas, digits, tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    replicas = make_replicas(train_specification(note_rows), {"notes": str(notes)}, {"worker": 3}, digits)
    replicas.start_all()
    assert [replicas.wait(name) for name in replicas.names()] == [0, 0, 0], replicas.text("worker-0")

    noted = [json.loads((notes / name).read_text()) for name in replicas.names()]
    manifests, every = {}, {}
    for split in ("train", "validation"):
        folder = digits.folder / split
        manifests[split] = DatasetManifest.from_json((folder / "dataset.json").read_text())
        batches = read_batches(folder, manifests[split])
        every[split] = [row for inputs, _ in batches for row in inputs.astype(int).tolist()]
    assert [note["task"] for note in noted] == [{"type": "worker", "index": index} for index in range(3)]
    assert [len(note["train"]) for note in noted] == [433, 433, 434]
    assert sorted(row for note in noted for row in note["train"]) == sorted(every["train"]), (
        "each row in one rank, once"
    )
    assert all(note["validation"] == every["validation"] for note in noted)

    store = open_store(replicas.job.model_uri)
    manifest = verify_model(store)
    column = manifests["train"].columns[0]
    assert manifest == ModelManifest(
        format="custom",
        files=manifest.files,
        metrics={"loss": 0.5},
        job="a-job",
        columns=({**asdict(column), "shape": [8, 8], "vocabulary": []},),
        label={
            "name": "label",
            "classes": [str(digit) for digit in range(10)],
            "task": "classification",
            "mean": 0.0,
            "std": 1.0,
        },
        training_data=(training_data(manifests["train"]),),
        request=replicas.job.request,
    )
    assert [entry.key for entry in store.list()] == [MODEL_MANIFEST, "sub/weights"]
    assert store.read("sub/weights") == b"worker-0"
    assert open_store(replicas.job.metrics_uri).read("training.json").startswith(b'{"replica": "worker-0"')


def forget_model(model_dir):
    pass


def take_the_manifests_name(model_dir):
    from pathlib import Path

    Path(model_dir, "model.json").write_text('{"learner": "a model of its own"}')


def fail(model_dir):
    numbers = {"one": 1}
    numbers["two"]


def print_to_both(model_dir):
    import os
    import sys

    for number in range(3):
        print("output", number)
        print("error", number, file=sys.stderr)
        os.system(f"echo child {number} >&2")
    raise ValueError("the end")


def test_output_and_errors_are_one_stream(make_replicas, digits, tmp_path):
    """A container's log is read from two pipes, so lines of two streams may be read in another order than written."""
    errors = tmp_path / "errors"
    module = "kfp_distributed.trainers.runtime.entry"
    separate = f"import os, runpy; os.dup2(os.open({str(errors)!r}, os.O_CREAT | os.O_WRONLY), 2)"
    replicas = make_replicas(train_specification(print_to_both), {}, {"worker": 1}, digits)
    replicas.arguments = ("-c", f"{separate}; runpy.run_module({module!r}, run_name='__main__')")
    replicas.start_all()
    assert replicas.wait("worker-0") == 1
    words = re.findall(r"^(output|error|child) (\d)$|^(ValueError): the end", replicas.text("worker-0"), re.MULTILINE)
    lines = [(word, number) for number in "012" for word in ("output", "error", "child")]
    assert words == [*((*line, "") for line in lines), ("", "", "ValueError")]
    assert errors.read_text() == ""


def leave(model_dir, code: int):
    import sys
    from pathlib import Path

    Path(model_dir, "weights").touch()
    sys.exit(code)


@pytest.mark.parametrize(
    ("program", "parameters", "code", "text"),
    [
        (train_specification(forget_model), {}, 1, "left nothing in model_dir"),
        (train_specification(take_the_manifests_name), {}, 1, "model_dir has a model.json"),
        (train_specification(fail), {}, 1, 'numbers["two"]'),
        (train_specification(leave), {"code": 3}, 3, ""),
        (train_specification(leave), {"code": 0}, 0, "model saved to"),
        (train_specification(leave), {"code": STORE_AWAY}, PROGRAM_CODE_RESERVED, ""),
        (["sh", "-c", f"exit {STORE_AWAY}"], {}, PROGRAM_CODE_RESERVED, ""),
        (train_specification(leave), {"code": STORE_UNREACHED}, PROGRAM_CODE_RESERVED, "exit code 147, which stands"),
        (["sh", "-c", f"exit {STORE_UNREACHED}"], {}, PROGRAM_CODE_RESERVED, ""),
        (["sh", "-c", "echo {train_dir} $0; exit 4", "--x"], {"epochs": 2}, 4, "train_dir --x"),
        (["sh", "-c", "kill -9 $$"], {}, 137, ""),
        (
            ["/nowhere/program"],
            {},
            127,
            "the command cannot be started: [Errno 2] No such file or directory: '",
        ),
        (["sh", "-c", "work_dir=a; echo in ${work_dir}; exit 5"], {}, 5, "in a"),
        (["sh", "-c", "touch $KFP_DISTRIBUTED_MODEL_DIR/model.pt"], {}, 0, "model saved to"),
    ],
)
def test_exit_code_and_last_lines_of_a_program(make_replicas, digits, program, parameters, code, text):
    program = {"command": program} if isinstance(program, list) else program
    replicas = make_replicas(program, parameters, {"worker": 1}, digits)
    replicas.start_all()
    assert replicas.wait("worker-0") == code
    assert text in replicas.text("worker-0")
    assert open_store(replicas.job.model_uri).exists(MODEL_MANIFEST) == (code == 0)


def print_parts(model_dir):
    import os

    print("row", end=" ")
    os.write(1, b"sample memory=5MiB\n")
    print(1)


def test_a_sample_does_not_divide_a_line_of_a_function(make_replicas, digits):
    program = train_specification(print_parts)
    replicas = make_replicas(program, {}, {"worker": 1}, digits, environment={"PYTHONUNBUFFERED": "1"})
    replicas.start_all()
    replicas.wait("worker-0")
    assert "\nsample memory=5MiB\nrow 1\n" in f"\n{replicas.text('worker-0')}"


def grow(model_dir, how: str):
    import os
    import signal
    import subprocess
    import sys

    program = "data = bytearray(300 * 2**20)"
    if how == "child":
        subprocess.run([sys.executable, "-S", "-c", program], check=True)
    else:
        exec(program)
    if how == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    os.chdir("/")
    raise ValueError(how)


@pytest.mark.parametrize(("how", "code"), [("itself", 1), ("child", 1), ("signal", 143)])
def test_a_replica_writes_its_peak_memory_however_it_ends(make_replicas, digits, how, code):
    replicas = make_replicas(train_specification(grow), {"how": how}, {"worker": 1}, digits)
    ballast = bytearray(700 * 2**20)  # Memory of the parent process does not count.
    replicas.start_all()
    assert replicas.wait("worker-0") == code
    del ballast
    peak = int((replicas.folder / "worker-0" / "peak-memory").read_text())
    assert 300 < peak / 1024 < 700, replicas.text("worker-0")


def test_a_replica_that_is_restarted_after_the_model_was_saved_trains_nothing(make_replicas, digits, tmp_path):
    program = {"command": ["sh", "-c", f"echo x >> {tmp_path}/starts; echo 1 > {{model_dir}}/weights"]}
    replicas = make_replicas(program, {}, {"worker": 1}, digits)
    for _ in range(2):
        replicas.start_all()
        assert replicas.wait("worker-0") == 0, replicas.text("worker-0")
    assert (tmp_path / "starts").read_text() == "x\n"


def test_a_damaged_shard_is_named(make_replicas, digits, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(digits.folder / "train", damaged)
    content = bytearray((damaged / "part-00002.parquet").read_bytes())
    content[100] ^= 1
    (damaged / "part-00002.parquet").write_bytes(content)
    replicas = make_replicas(train_specification(forget_model), {}, {"worker": 1}, digits)
    replicas.job = replace(replicas.job, train_uri=str(damaged))
    replicas.start_all()
    assert replicas.wait("worker-0") == 1
    assert "part-00002.parquet" in replicas.text("worker-0").splitlines()[-1], replicas.text("worker-0")


def test_a_replica_ends_even_if_its_last_files_cannot_be_stored(tmp_path):
    program = """
from kfp_distributed.trainers.runtime.lifecycle import ending
from kfp_distributed.trainers.runtime.checkpoints import folder_uploads

def fail(by_program):
    raise RuntimeError("can't start new thread")

folder_uploads.flush = fail
ending.end(143)
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 143
    assert "RuntimeError: can't start new thread" in ended.stderr


def test_sigterm_ends_a_replica_after_its_command(make_replicas, digits):
    script = "trap 'echo told; exit 0' TERM; echo begun; while :; do sleep 0.1; done"
    replicas = make_replicas({"command": ["sh", "-c", script]}, {}, {"worker": 1}, digits)
    replicas.start_all()
    replicas.wait_for("worker-0", "begun")
    replicas.running["worker-0"].terminate()
    assert replicas.wait("worker-0") == 128 + signal.SIGTERM
    assert "told" in replicas.text("worker-0")


def count_up(model_dir, checkpoint_dir):
    import time
    from pathlib import Path

    state = Path(checkpoint_dir, "state")
    number = int(state.read_text()) if state.exists() else 0
    print(f"begins after {number}", flush=True)
    state.write_text(str(number + 1))
    while number == 0:
        time.sleep(1)  # Until it is killed.
    Path(model_dir, "weights").write_text(state.read_text())


def test_a_function_finds_its_files_in_checkpoint_dir_after_a_restart(make_replicas, digits):
    replicas = make_replicas(train_specification(count_up), {}, {"worker": 1}, digits)
    replicas.start_all()
    replicas.wait_for("worker-0", "begins after 0")
    checkpoints, deadline = open_store(replicas.job.checkpoint_uri), time.monotonic() + 120
    while not complete_checkpoints(checkpoints) and time.monotonic() < deadline:
        time.sleep(0.1)
    replicas.running["worker-0"].kill()
    replicas.wait("worker-0")
    replicas.start("worker-0")
    assert replicas.wait("worker-0") == 0
    assert "begins after 1" in replicas.text("worker-0")
    assert open_store(replicas.job.model_uri).read("weights") == b"2"
    assert complete_checkpoints(checkpoints) == ["00000002", "00000001"], "the end's checkpoint is there too"


def write_slowly(model_dir, checkpoint_dir):
    import time
    from pathlib import Path

    with Path(checkpoint_dir, "state").open("wb", 0) as state:
        for number in range(600):
            state.write(b"x")
            print(f"has written {number + 1}", flush=True)
            time.sleep(0.1)


# mpirun and shells also end with 128 + signal.
@pytest.mark.parametrize(
    "form", ["function", "command", pytest.param("killed command", marks=pytest.mark.command_line)]
)
def test_an_incomplete_checkpoint_is_not_stored(make_replicas, digits, form):
    program = train_specification(write_slowly)
    if form != "function":
        call = "import os\nwrite_slowly('', os.environ['KFP_DISTRIBUTED_CHECKPOINT_DIR'])"
        program = {"command": [sys.executable, "-c", f"{inspect.getsource(write_slowly)}\n{call}"]}
    replicas = make_replicas(program, {}, {"worker": 1}, digits)
    replicas.start_all()
    replicas.wait_for("worker-0", "has written 50")
    replica = replicas.running["worker-0"]
    if form == "killed command":
        (child,) = psutil.Process(replica.pid).children()
        child.kill()
    else:
        replica.terminate()
    assert replicas.wait("worker-0") == 128 + (signal.SIGKILL if form == "killed command" else signal.SIGTERM)
    assert open_store(replicas.job.checkpoint_uri).list() == []


def write_half_and_fail(model_dir, checkpoint_dir, error: str, message: str):
    import builtins
    from pathlib import Path

    Path(checkpoint_dir, "state").write_text("half")
    raise getattr(builtins, error, type(error, (Exception,), {}))(message)


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        ("RuntimeError", "[../third_party/gloo/gloo/transport/tcp/pair.cc:589] Connection closed", PEER_LOST),
        ("DistributionError", "the shapes do not fit", 1),
        ("UnavailableError", "no such column", 1),
    ],
)
def test_a_function_that_fails_while_it_writes_stores_nothing(make_replicas, digits, error, message, code):
    program = train_specification(write_half_and_fail)
    replicas = make_replicas(program, {"error": error, "message": message}, {"worker": 1}, digits)
    replicas.start_all()
    assert replicas.wait("worker-0") == code
    assert message in replicas.text("worker-0")
    assert open_store(replicas.job.checkpoint_uri).list() == []


def test_a_command_that_fails_while_it_writes_stores_nothing(make_replicas, digits):
    program = {"command": ["sh", "-c", "echo half > {checkpoint_dir}/state; exit 1"]}
    replicas = make_replicas(program, {}, {"worker": 1}, digits)
    replicas.start_all()
    assert replicas.wait("worker-0") == 1
    assert open_store(replicas.job.checkpoint_uri).list() == []


def load_or_fail(model_dir, checkpoint_dir, bad: list):
    from pathlib import Path

    from kfp_distributed.trainers.sync import flush

    state = Path(checkpoint_dir, "state")
    number = int(state.read_text()) if state.exists() else 0
    print(f"begins after {number}", flush=True)
    if number in bad:
        raise ValueError(f"cannot load {number}")
    for epoch in range(number + 1, 5):
        state.write_text(str(epoch))
        flush()
        if epoch == 3 and number == 0:
            raise KeyError("a bug")
    Path(model_dir, "weights").write_text("4")


def test_a_program_that_fails_right_after_a_restore_gets_the_checkpoint_before(make_replicas, digits):
    program = train_specification(load_or_fail)
    replicas = make_replicas(program, {"bad": [3]}, {"worker": 1}, digits)
    checkpoints = open_store(replicas.job.checkpoint_uri)
    codes = []
    for _ in range(3):
        replicas.start_all()
        codes.append(replicas.wait("worker-0"))
    begins = re.findall(r"begins after (\d)", replicas.text("worker-0"))
    # The bug comes after a checkpoint was stored, so it is no reason to restore an earlier one.
    assert (codes, begins) == ([1, CHECKPOINT_REJECTED, 0], ["0", "3", "2"])
    assert "the next start gets checkpoint 00000002" in replicas.text("worker-0")
    assert complete_checkpoints(checkpoints)[0] == "00000005"


def fail_after_the_next_epoch(model_dir, checkpoint_dir, metrics_dir):
    from pathlib import Path

    from kfp_distributed.trainers.sync import record_epoch

    state = Path(checkpoint_dir, "state")
    number = int(state.read_text()) if state.exists() else 0
    print(f"begins after {number}", flush=True)
    state.write_text(str(number + 1))
    record_epoch(Path(metrics_dir, "training.json"), "worker-0", number + 1, 4, {})
    raise KeyError("a bug")


def test_a_checkpoint_that_waits_for_its_upload_proves_that_the_restored_one_was_good(make_replicas, digits):
    replicas = make_replicas(train_specification(fail_after_the_next_epoch), {}, {"worker": 1}, digits)
    codes = []
    for _ in range(3):
        replicas.start_all()
        codes.append(replicas.wait("worker-0"))
    assert (codes, re.findall(r"begins after (\d)", replicas.text("worker-0"))) == ([1, 1, 1], ["0", "1", "2"])
    assert complete_checkpoints(open_store(replicas.job.checkpoint_uri)) == ["00000003", "00000002", "00000001"]


@pytest.mark.parametrize("command", [False, True])
def test_a_program_that_can_load_no_checkpoint_fails_with_their_names(make_replicas, digits, command):
    program = train_specification(load_or_fail)
    if command:
        script = "test -e {checkpoint_dir}/state && exit 3; echo 1 > {checkpoint_dir}/new; mv {checkpoint_dir}/new "
        program = {"command": ["sh", "-c", f"{script} {{checkpoint_dir}}/state; exit 0"]}
    parameters = {} if command else {"bad": [1, 2, 3]}
    replicas = make_replicas(program, parameters, {"worker": 1}, digits)
    store = open_store(replicas.job.checkpoint_uri)
    state = replicas.folder / "state"
    state.mkdir()
    for number in (1, 2, 3):
        (state / "state").write_text(str(number))
        save_checkpoint(store, state)
    codes = []
    for _ in range(3):
        replicas.start_all()
        codes.append(replicas.wait("worker-0"))
    assert codes == [CHECKPOINT_REJECTED, CHECKPOINT_REJECTED, 3 if command else 1]
    # So no checkpoint is at fault: once the program is mended, it continues from the newest.
    assert [entry.key for entry in store.list() if entry.key.endswith(".failed")] == []


def write_and_fail(model_dir, checkpoint_dir):
    from pathlib import Path

    Path(checkpoint_dir, "unfinished").write_text("1")
    Path(checkpoint_dir, "unfinished").rename(Path(checkpoint_dir, "state"))
    raise ValueError("a bug")


def test_a_function_that_raises_has_its_complete_checkpoint_stored(make_replicas, digits):
    replicas = make_replicas(train_specification(write_and_fail), {}, {"worker": 1}, digits)
    replicas.start_all()
    assert replicas.wait("worker-0") == 1
    store = open_store(replicas.job.checkpoint_uri)
    assert [entry.key for entry in store.list()] == ["00000001.json", "00000001/state"]
    assert json.loads(store.read("00000001.json"))["guessed"] is False


def leave_links(model_dir, checkpoint_dir, target: str):
    from pathlib import Path

    from kfp_distributed.trainers.sync import flush

    Path(checkpoint_dir, "state").write_text("1")
    Path(checkpoint_dir, "newest").symlink_to("nowhere")
    for _ in range(3):
        flush()
    Path(checkpoint_dir, "newest").unlink()
    Path(checkpoint_dir, "newest").symlink_to("state")
    flush()
    Path(model_dir, "weights").write_text("1")
    Path(model_dir, "link").symlink_to(target)


@pytest.mark.parametrize(("target", "code"), [("weights", 0), ("/etc/hostname", 1)])
def test_links_are_followed_inside_a_folder_and_refused_outside(make_replicas, digits, target, code):
    replicas = make_replicas(train_specification(leave_links), {"target": target}, {"worker": 1}, digits)
    replicas.start_all()
    assert replicas.wait("worker-0") == code
    text = replicas.text("worker-0")
    # A link in checkpoint_dir that cannot be stored is logged once and does not end the training.
    assert text.count("not stored: ") == 1
    assert "newest is a link to nowhere, which does not exist" in text
    last, first = complete_checkpoints(store := open_store(replicas.job.checkpoint_uri))
    assert [entry.key for entry in store.list(f"{first}/")] == [f"{first}/state"]
    assert store.read(f"{last}/newest") == b"1"
    model = [entry.key for entry in open_store(replicas.job.model_uri).list()]
    assert model == (["link", MODEL_MANIFEST, "weights"] if code == 0 else [])
    assert ("link is a link to /etc/hostname, which is not inside" in text) == (code != 0)


def warn(model_dir):
    import contextlib
    import os
    import threading
    from pathlib import Path

    import tensorflow as tf
    import tf_keras  # noqa: F401  (it adds variables)

    assert threading.active_count() > 1
    os.write(2, b"I0000 this one is of the program\n")
    with contextlib.suppress(tf.errors.NotFoundError):
        tf.io.read_file("nowhere")  # TensorFlow's C++ warns of it at once.
    Path(model_dir, "weights").touch()


START_UP = re.compile("oneDNN|absl::InitializeLog|computation placer|cpu_feature_guard|Unable to register")

# The C library moves its array of variables when one is added, and a thread that reads one may then crash.
NOTE_VARIABLES = """
import os, threading
putenv = os.putenv

def note(name, value):
    name = os.fsencode(name)
    if name not in os.environ._data and threading.active_count() > 1:
        with open("added", "ab") as file:
            file.write(name + b"\\n")
    putenv(name, value)

os.putenv = note
"""


# A fork does not import TensorFlow.
@pytest.mark.command_line
def test_an_import_of_tensorflow_has_known_remarks_and_adds_no_variable_beside_threads(
    make_replicas, digits, tmp_path, monkeypatch
):
    # Tests of evaluate set it in this process, and replicas inherit it.
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    (tmp_path / "sitecustomize.py").write_text(NOTE_VARIABLES)
    environment = {"PYTHONPATH": str(tmp_path), "KFP_DISTRIBUTED_LAUNCHER_LOST_SECONDS": "600"}
    replicas = make_replicas(train_specification(warn), {}, {"worker": 1}, digits, environment=environment)
    replicas.start_all()
    assert replicas.wait("worker-0") == 0, replicas.text("worker-0")
    lines = [line for line in replicas.text("worker-0").splitlines() if not re.search(STARTUP_REMARK, line)]
    assert [line for line in lines if START_UP.search(line)] == []
    assert any("nowhere; No such file" in line for line in lines), lines
    assert "I0000 this one is of the program" in lines
    added = replicas.folder / "worker-0" / "added"
    assert not added.exists(), added.read_text()


@pytest.mark.command_line
def test_the_output_of_an_import_that_aborts_is_shown(make_replicas, digits, tmp_path):
    package = tmp_path / "packages" / "tensorflow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import os\nos.write(2, b'F0000 compiled to use AVX instructions\\n')\nos.abort()\n"
    )
    paths = os.pathsep.join([str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    replicas = make_replicas(train_specification(warn), {}, {"worker": 1}, digits, environment={"PYTHONPATH": paths})
    replicas.start_all()
    assert replicas.wait("worker-0") == -signal.SIGABRT
    # At once: the end of process 1 of a container ends all others.
    assert "F0000 compiled to use AVX instructions" in replicas.text("worker-0")


def note_types(model_dir, size: tuple[int, int], notes: Path, mode: Literal["fast", "slow"] = "slow"):
    notes.write_text(repr([size, mode]))
    (notes.__class__(model_dir) / "weights").write_text("x")


def test_a_function_gets_tuples_and_paths(make_replicas, digits, tmp_path):
    parameters = {"size": [28, 14], "notes": str(tmp_path / "notes"), "mode": "fast"}
    replicas = make_replicas(train_specification(note_types), parameters, {"worker": 1}, digits)
    replicas.start_all()
    assert replicas.wait("worker-0") == 0, replicas.text("worker-0")
    assert (tmp_path / "notes").read_text() == "[(28, 14), 'fast']"
