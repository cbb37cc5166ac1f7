"""What tests see of a forked replica is what they would see of its command line."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import forked_replicas
import psutil
import pytest
from forked_replicas import forked
from process_hygiene import is_alive, started
from replicas import kill_replica

from kfp_distributed.components import export_model
from kfp_distributed.trainers import train_specification
from kfp_distributed.trainers.runtime.job_description import JOB_VARIABLE, REPLICA_VARIABLE


def fit(train_dir, model_dir, metrics_dir, code: int = 0):
    import os
    import sys
    import time
    from pathlib import Path

    print("runs", os.getpid(), os.getppid(), Path.cwd().samefile(sys.path[0]), "tensorflow" in sys.modules, flush=True)
    while not code:
        time.sleep(0.1)
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


@pytest.fixture
def start(make_replicas, digits):
    def start_replica(code=0):
        replicas = make_replicas(train_specification(fit), {"code": code}, {"worker": 1}, digits)
        replicas.start_all()
        replicas.wait_for("worker-0", "runs")
        words = replicas.text("worker-0").partition("runs ")[2].split()
        return replicas, replicas.running["worker-0"], *map(int, words[:2]), words[2:4]

    return start_replica


@pytest.mark.parametrize("code", [3, -signal.SIGSEGV, -signal.SIGKILL])
def test_the_exit_code_of_a_fork_is_that_of_its_client(start, code):
    replicas, client, pid, parent, state = start(code)
    assert replicas.wait("worker-0") == code
    assert parent not in (client.pid, os.getpid())
    assert pid != client.pid
    assert state == ["True", "True"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_signal_to_the_client_ends_the_fork(start, number, code):
    replicas, client, pid, _, _ = start()
    fork = psutil.Process(pid)
    client.send_signal(number)
    assert replicas.wait("worker-0") == code
    fork.wait(60)


def test_what_a_fork_does_is_shown_if_a_test_waits_in_vain(start):
    replicas, *_ = start()
    with pytest.raises(pytest.fail.Exception, match=r"(?s)worker-0 has not ended\n.*runs .*Fatal.* in fit\n"):
        replicas.wait("worker-0", 0)


@pytest.mark.command_line
def test_a_marked_test_starts_the_command_line(start):
    _, process, pid, parent, state = start()
    assert (process.pid, parent, state[1]) == (pid, os.getpid(), "False")


def test_a_program_runs_in_a_fork_as_in_a_new_python(tmp_path):
    program = "import pickle, sys\nclass A: pass\nprint(__name__, sys.argv, 'tensorflow' in sys.modules, end=' ')\n"
    program += "print(type(pickle.loads(pickle.dumps(A()))), file=sys.stderr)"
    file = tmp_path / "program.py"
    file.write_text(program)
    for words in (["-c", program], [str(file)]):
        done = subprocess.run(forked(sys.executable, *words, "x"), capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == (f"__main__ {[words[0], 'x']} True ", "<class '__main__.A'>\n")


def test_a_fork_imports_kfp_as_a_new_python_does():
    program = "from kfp import compiler, dsl\nprint(compiler.Compiler.__name__, dsl.pipeline.__name__)"
    done = subprocess.run(forked(sys.executable, "-c", program), capture_output=True, text=True, check=True)
    assert done.stdout == "Compiler pipeline\n"


def test_a_step_and_its_replicas_are_forks(tmp_path):
    """kfp.local starts a step by the command of its component, with this Python in place of python3."""
    shell, option, command, _ = export_model.component_spec.implementation.container.command
    program = "import sys\nprint('tensorflow' in sys.modules, 'kfp.dsl' in sys.modules, sys.argv[1:], sys.executable)"
    python = f"{forked(sys.executable)[-2]}.bin/python"
    words = [shell, option, command.replace("python3", python), program, "--x"]
    done = subprocess.run(
        words, capture_output=True, text=True, check=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    (path,) = tmp_path.glob("*/*.py")
    assert done.stdout == f"True True ['--component_module_path', '{path}', '--x'] {python}\n"


SLEEP = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Return the process of a server of this test alone. It has imported no frameworks."""
    with started(["sleep", "600"]) as owner:
        monkeypatch.setenv(forked_replicas.FOLDER_VARIABLE, str(tmp_path))
        monkeypatch.setenv(forked_replicas.FOLDER_VARIABLE + "_OWNER", str(owner.pid))
        monkeypatch.setattr(forked_replicas, "IMPORTED", ("numpy",))
        process = psutil.Process(parent_of_a_fork())
        yield process
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def parent_of_a_fork():
    command = forked(sys.executable, "-c", "import os\nprint(os.getppid())")
    return int(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)


@pytest.fixture
def sleeping(server):
    """Return the client of a fork that sleeps, and the fork."""
    with started(forked(sys.executable, "-c", SLEEP), stdout=subprocess.PIPE) as client:
        yield client, psutil.Process(int(client.stdout.readline()))


@pytest.fixture
def connect(server):
    """Return a function that connects to the server as a client, and sends the size of a request and the request."""
    with socket.socket(socket.AF_UNIX) as client:

        def send(request=b"", size=0):
            client.connect(forked(sys.executable)[-2])
            socket.send_fds(client, [(size or len(request)).to_bytes(8, "big")], [0, 1, 2])
            client.sendall(request)
            return client

        yield send


def test_a_fork_and_its_client_may_end_at_once(server, sleeping, connect):
    client, fork = sleeping
    # The server waits for the rest of this request meanwhile. Then it learns of both ends at once.
    other = connect(size=1)
    time.sleep(0.2)
    fork.kill()
    time.sleep(0.2)
    client.kill()
    client.wait(60)
    other.close()
    assert parent_of_a_fork() == server.pid


def test_a_client_may_end_before_its_fork_exists(server, connect):
    server.suspend()
    client = connect(json.dumps(content_of("-c", SLEEP)).encode())
    client.close()
    server.resume()
    assert parent_of_a_fork() == server.pid
    wait_until(lambda: not server.children())


def content_of(*arguments):
    """Return what a client sends."""
    python = f"{forked(sys.executable)[-2]}.bin/python"
    return {"arguments": arguments, "environment": dict(os.environ), "folder": str(Path.cwd()), "python": python}


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


FAILING = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
import server
accept = server.Server._accept

def accept_and_fail(self):
    request = accept(self)
    if not request and Path(__file__).with_name("full").exists():
        raise OSError("the disk of this test is full")
    return request

server.Server._accept = accept_and_fail
server.main()
"""


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """Let servers be started that fail at a request once this file exists."""
    folder = Path(forked_replicas.__file__).parent
    (tmp_path / "server.py").write_text(FAILING.format(folder=str(folder)))
    (tmp_path / "client.py").symlink_to(folder / "client.py")
    monkeypatch.setattr(forked_replicas, "PROGRAMS", tmp_path)
    return tmp_path / "full"


def test_a_server_that_fails_kills_its_forks(failing, server, sleeping, connect):
    client, fork = sleeping
    failing.touch()
    connect(size=1).close()
    server.wait(60)
    fork.wait(60)
    assert client.wait(60) == -signal.SIGKILL


TESTS = """
import subprocess, sys
import forked_replicas

forked_replicas.PROGRAMS, forked_replicas.IMPORTED = forked_replicas.Path(__file__).parent, ("numpy",)

def test_fork():
    subprocess.run(forked_replicas.forked(sys.executable, "-c", ""))
"""


@pytest.mark.takes(20)
def test_a_server_that_fails_fails_the_run_and_is_shown(failing, tmp_path):
    failing.touch()
    (tmp_path / "test_fork.py").write_text(TESTS)
    variables = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "forked_replicas", "-n", "1", "test_fork.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert "OSError: the disk of this test is full" in done.stdout
    # The exit code of failed tests is forgiven if they pass when they run once more.
    assert done.returncode == pytest.ExitCode.INTERNAL_ERROR


def test_a_fork_stops_before_anybody_learns_that_its_client_is_killed(server, sleeping):
    client, fork = sleeping
    server.suspend()  # As if it was starting another fork.
    client.kill()
    client.wait(60)
    wait_until(lambda: fork.status() == psutil.STATUS_STOPPED)
    server.resume()
    fork.wait(60)


FAMILY = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[1]], start_new_session=True)"


def test_descendants_of_a_fork_end_with_its_client(server):
    """A child in a session of its own is found by its parent alone."""
    with started(forked(sys.executable, "-c", FAMILY, SLEEP), stdout=subprocess.PIPE) as client:
        child = psutil.Process(int(client.stdout.readline()))
        client.kill()
        child.wait(60)


def test_a_replica_that_is_killed_trains_no_more(server, start):
    _, _, pid, _, _ = start()
    server.suspend()
    kill_replica("worker-0")
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)


RANK = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[1], '-m {forked_replicas.ENTRY}'])"
"""Stands for torchrun in a fork: the rank that it starts is a fork too."""


def test_a_rank_of_a_replica_that_is_killed_trains_no_more(server, tmp_path, monkeypatch):
    monkeypatch.setenv(REPLICA_VARIABLE, "worker-0")
    monkeypatch.setenv(JOB_VARIABLE, str(tmp_path))
    with started(forked(sys.executable, "-c", RANK, SLEEP), stdout=subprocess.PIPE) as client:
        pid = int(client.stdout.readline())
        server.suspend()
        kill_replica("worker-0")
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)


OF_OTHERS = f"import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)  # -m {forked_replicas.ENTRY}"


def test_a_replica_of_the_same_name_that_other_tests_have_started_is_not_killed(start):
    """Tests run beside each other, and nearly all of them have a replica of this name."""
    words = ["setsid", "--fork", sys.executable, "-c", OF_OTHERS]
    variables = os.environ | {REPLICA_VARIABLE: "worker-0"}
    with started(words, stdout=subprocess.PIPE, env=variables) as other:
        process = psutil.Process(int(other.stdout.readline()))
        try:
            replicas, *_ = start()
            kill_replica("worker-0")
            assert replicas.wait("worker-0") == -signal.SIGKILL
            assert is_alive(process)
        finally:
            process.kill()


def test_a_client_that_is_stopped_before_its_request_is_not_waited_for(server, connect):
    connect(size=1)
    assert parent_of_a_fork() == server.pid


def test_a_fork_is_stopped_and_continued_as_a_process_is(sleeping):
    client, fork = sleeping
    client.send_signal(signal.SIGTSTP)
    wait_until(lambda: fork.status() == psutil.STATUS_STOPPED)
    client.send_signal(signal.SIGCONT)
    wait_until(lambda: fork.status() == psutil.STATUS_SLEEPING)


def test_a_start_of_a_server_that_has_failed_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setenv(forked_replicas.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(forked_replicas, "IMPORTED", ("numpy",))
    with monkeypatch.context() as patch:
        patch.setattr(forked_replicas, "make_archive", lambda content: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            forked(sys.executable)
    assert parent_of_a_fork() != os.getpid()


def test_a_server_has_no_variables_of_the_test_that_starts_it(monkeypatch, request):
    monkeypatch.setenv("VARIABLE_OF_A_TEST", "1")
    server = request.getfixturevalue("server")
    assert "VARIABLE_OF_A_TEST" not in server.environ()
    program = "import os\nprint(os.environ['VARIABLE_OF_A_TEST'])"
    done = subprocess.run(forked(sys.executable, "-c", program), capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
