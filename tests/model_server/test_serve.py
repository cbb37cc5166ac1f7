"""The command `serve`, asked over HTTP."""

import json
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from http.client import HTTPConnection
from threading import Barrier, Thread
from urllib.parse import urlsplit

import numpy as np
import pytest
from forked_replicas import forked
from prediction_models import linear_network, save_onnx

from kfp_distributed.cli.commands.serve import name_and_version
from kfp_distributed.components.model_formats.onnx_model import OnnxModel
from kfp_distributed.components.model_server import http_server
from kfp_distributed.components.model_server.http_server import LARGEST_BODY, ModelServer, RequestHandler
from kfp_distributed.storage.dataset import Column
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest
from kfp_distributed.storage.object_stores.embedded import embedded_object_store
from kfp_distributed.storage.opener import open_store
from kfp_distributed.trainers.onnx_inputs import with_column_inputs

pytestmark = pytest.mark.takes(14)

COLUMNS = (Column("size", "number", "float32", fill=2.0), Column("colour", "category", "int32", vocabulary=("red",)))
ROWS = [{"size": 1.5, "colour": "red"}, {"size": float("nan"), "colour": ""}, {"size": 3, "colour": "unknown"}]
MAIN = "from kfp_distributed.cli.main import main; main()"


def serve(*words, program=MAIN):
    """Return the command line of the command in a fork."""
    return forked(sys.executable, "-c", program, "serve", *words)


@pytest.fixture(scope="module")
def onnx_model(tmp_path_factory):
    network = with_column_inputs(linear_network([2, 0], 2), COLUMNS, has_unknown=False)
    folder = tmp_path_factory.mktemp("models") / "flowers" / "3"
    return save_onnx(folder, network, columns=tuple(map(asdict, COLUMNS)))


@contextmanager
def serving(model, *options):
    """Yield a connection to the command, the path of its model, and the process."""
    command = serve(model, "--port", "0", *options)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            lines = iter(process.stdout.readline, "")
            line = next((line for line in lines if line.startswith("serving")), "")
            assert line, process.wait()
            address = urlsplit(line.split(" at ")[1].split(",")[0])
            connection = HTTPConnection(address.netloc, timeout=120)
            yield connection, address.path, process
            connection.close()
        finally:
            process.kill()


def ask(connection, path, body=None):
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("GET" if body is None else "POST", path, content)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def ask_once(connection, request):
    """Return the status and the content of the answer to some bytes, after which the server closes the connection."""
    with socket.create_connection((connection.host, connection.port), timeout=30) as once:
        once.sendall(request)
        head, content = once.makefile().read().split("\n\n")
    assert "Content-Type: application/json" in head
    return int(head.split()[1]), json.loads(content)


def test_an_onnx_model_is_asked_by_row_and_by_column_on_one_connection(onnx_model):
    values = {"size": [[1.5], [np.nan], [3]], "colour": [["red"], [""], ["unknown"]]}
    inputs = {"size": np.array(values["size"], np.float32), "colour": np.array(values["colour"], object)}
    answers = OnnxModel(onnx_model).run(inputs)["probabilities"]
    with serving(onnx_model) as (connection, path, process):
        assert path == "/v1/models/flowers:predict"
        status, content = ask(connection, path, {"instances": ROWS})
        np.testing.assert_array_equal(np.array(content["predictions"], np.float32), answers)
        assert ask(connection, path, {"inputs": values}) == (200, {"outputs": content["predictions"]})
        assert ask(connection, "/v1/models/flowers/versions/3:predict", {"instances": ROWS}) == (200, content)
        assert (status, ask(connection, path, {"instances": [{"size": 1}]})[0]) == (200, 400)
        status, content = ask(connection, path, {"inputs": {"size": [[1.5], [2]], "colour": [["red"]]}})
        assert (status, "the model cannot use these values: " in content["error"]) == (400, True), content
        assert "save" not in content["error"]
        for wrong in ("/v1/models/other:predict", "/v1/models/flowers/versions/4:predict", "/"):
            status, content = ask(connection, wrong, {"instances": ROWS})
            assert status == 404
            assert "/v1/models/flowers, version 3" in content["error"]
        (state,) = ask(connection, "/v1/models/flowers")[1]["model_version_status"]
        assert (state["version"], state["state"]) == ("3", "AVAILABLE")
        metadata = ask(connection, "/v1/models/flowers/metadata")[1]["metadata"]
        assert metadata["inputs"]["colour"] == {"dtype": "string", "shape": [None, 1]}
        connection.request("PUT", path)
        response = connection.getresponse()
        assert (response.status, response.getheader("Allow")) == (501, None)
        assert json.loads(response.read()) == {"error": "Unsupported method ('PUT')"}
        with socket.create_connection((connection.host, connection.port), timeout=30) as once:
            once.sendall(b"HEAD / HTTP/1.1\r\n\r\n")
            head, content = once.makefile().read().split("\n\n")
        assert (head.partition("\n")[0], content) == ("HTTP/1.1 501 Not Implemented", "")
        for request, expected in (
            (b"wrong", 400),
            (b"GET / HTTP/x", 400),
            (b"GET /v1/models/flowers HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 200),
            (b"GET /v1/models/flowers HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0", 200),
        ):
            status, content = ask_once(connection, request + b"\r\n\r\n")
            assert (status, [*content]) == (expected, ["error" if expected == 400 else "model_version_status"])
        for length, expected in (("0", None), ("1", "close")):
            connection.request("GET", "/v1/models/flowers", b" " * int(length), {"Content-Length": length})
            response = connection.getresponse()
            assert (response.read()[:1], response.getheader("Connection")) == (b"{", expected)
        connection.putrequest("POST", path)
        connection.putheader("Content-Length", str(LARGEST_BODY + 1))
        connection.endheaders()
        response = connection.getresponse()
        assert (response.status, response.getheader("Connection")) == (413, "close")
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 143


def test_many_clients_at_once_and_those_that_leave_disturb_nobody(onnx_model):
    with serving(onnx_model) as (connection, path, process), ThreadPoolExecutor(100) as pool:
        place = connection.host, connection.port

        def answer(body, method="POST", is_chunked=False):
            other = HTTPConnection(*place, timeout=120)
            with closing(other):
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                other.request(method, path, [content] if is_chunked else content, encode_chunked=is_chunked)
                return other.getresponse().status

        together = Barrier(100)

        def answer_together(body):
            together.wait(120)
            return answer(body)

        assert set(pool.map(answer_together, [{"instances": ROWS}] * 100)) == {200}
        large = b" " * (LARGEST_BODY + 1)
        # The answer comes before the server has read the body.
        assert [answer(large), answer(large, "PUT"), answer(large, "GET")] == [413, 501, 404]
        assert answer(large, is_chunked=True) == 411
        with socket.create_connection(place) as leaving:
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # Close by a reset.
            leaving.sendall(f"POST {path} HTTP/1.1\r\nContent-Length: 9\r\n\r\n[".encode())
        with socket.create_connection(place) as wrong:
            wrong.sendall(f"POST {path} HTTP/1.1\r\nContent-Length: {'9' * 5000}\r\n\r\n".encode())
            assert wrong.makefile("rb").readline() == b"HTTP/1.1 411 Length Required\r\n"
        assert answer({"instances": ROWS}) == 200
        process.terminate()
        assert process.stdout.read() == ""


@contextmanager
def local_server():
    """Yield a server in this process, which answers no path, and its address."""
    with ModelServer("127.0.0.1", 0) as server:
        server.listen(RequestHandler)
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server, server.server_address
        finally:
            server.shutdown()
            thread.join()


def test_a_client_that_never_stops_sending_is_disconnected(monkeypatch):
    monkeypatch.setattr(http_server, "CLOSING_SECONDS", 0.5)
    with local_server() as (_, address), socket.create_connection(address, timeout=30) as endless:
        endless.sendall(b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert endless.makefile("rb").readline().startswith(b"HTTP/1.1 ")

        def send_slowly():
            for _ in range(50):
                endless.sendall(b"1\r\nx\r\n")
                time.sleep(0.1)

        with pytest.raises(ConnectionError):
            send_slowly()


def test_a_connection_that_gets_no_thread_delays_nobody(monkeypatch):
    def refuse_once(*_):
        monkeypatch.undo()
        raise RuntimeError("can't start new thread")

    with local_server() as (server, address):
        monkeypatch.setattr(server, "process_request", refuse_once)
        with socket.create_connection(address, timeout=30), socket.create_connection(address, timeout=30) as other:
            before = time.monotonic()
            other.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert other.makefile("rb").readline().startswith(b"HTTP/1.1 ")
            assert time.monotonic() - before < 3


def test_a_saved_model_is_served_from_an_object_store(tmp_path, tmp_path_factory, monkeypatch):
    import tensorflow as tf

    class Model(tf.Module):
        @tf.function(
            input_signature=[tf.TensorSpec([None], tf.float32, "size"), tf.TensorSpec([None], tf.string, "colour")]
        )
        def serve(self, size, colour):
            return {"size": size, "colour": colour}

    module = Model()
    tf.saved_model.save(module, str(tmp_path), {"serving_default": module.serve})
    (tmp_path / MODEL_MANIFEST).write_text(ModelManifest(files=describe_folder(tmp_path)).to_json())
    with ExitStack() as stack:
        server = stack.enter_context(embedded_object_store(tmp_path_factory.mktemp("objects")))
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        store = open_store("s3://served/echo/7")
        store.make_bucket()
        store.upload_folder(tmp_path)
        downloads = tmp_path_factory.mktemp("downloads")
        monkeypatch.setenv("TMPDIR", str(downloads))
        connection, path, process = stack.enter_context(serving("s3://served/echo/7", "--name", "echo.2"))
        assert path == "/v1/models/echo.2:predict"
        status, content = ask(connection, path, {"instances": ROWS})
        assert (status, str(content["predictions"])) == (
            200,
            "[{'colour': 'red', 'size': 1.5}, {'colour': '', 'size': nan}, {'colour': 'unknown', 'size': 3.0}]",
        )
        assert [*downloads.glob("serve-*/model")]
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
        assert [*downloads.glob("serve-*")] == []


ENDED_WHILE_LOADING = """
import os, signal, sys
import onnxruntime
load = onnxruntime.InferenceSession
def load_after_signal(*arguments, **options):
    os.kill(os.getpid(), signal.SIGTERM)
    return load(*arguments, **options)
onnxruntime.InferenceSession = load_after_signal
from kfp_distributed.cli.main import main
main()
"""


def test_a_server_that_is_ended_while_it_loads_blames_no_model(onnx_model):
    command = serve(onnx_model, "--port", "0", program=ENDED_WHILE_LOADING)
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "")


def test_a_wrong_model_or_port_is_one_line(tmp_path, onnx_model):
    def error(*words):
        done = subprocess.run(serve(*words), capture_output=True, text=True)
        assert done.stdout == ""
        return done.returncode, done.stderr.strip()

    code, line = error(tmp_path)
    assert (code, "has no model.json" in line) == (1, True), line
    code, line = error(tmp_path / "nothing", "--port", 0)
    assert (code, line.partition(": pass that")[0]) == (2, f"Error: there is no folder {tmp_path}/nothing"), line
    assert error(onnx_model, "--name", "a/b")[0] == 2
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, line = error(onnx_model, "--port", port)
        # Noticed before the model is read.
        assert error("nothing", "--port", port)[1].startswith("Error: cannot serve nothing on 127.0.0.1:")
    assert (code, line) == (1, f"Error: cannot serve {onnx_model} on 127.0.0.1:{port}: Address already in use")


def test_a_model_is_served_on_an_address_of_ipv6(onnx_model):
    with serving(onnx_model, "--host", "::1") as (connection, path, _):
        assert connection.host == "::1"
        assert ask(connection, path, {"instances": ROWS})[0] == 200


def test_a_download_that_finds_no_room_names_the_file(tmp_path, monkeypatch):
    with embedded_object_store(tmp_path / "objects") as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        store = open_store("s3://served/big/1")
        store.make_bucket()
        model = tmp_path / "model"
        model.mkdir()
        (model / "model.onnx").write_bytes(bytes(2**18))
        (model / MODEL_MANIFEST).write_text(ModelManifest("onnx", describe_folder(model)).to_json())
        store.upload_folder(model)
        limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)); {MAIN}"
        command = serve("s3://served/big/1", "--port", "0", program=limited)
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(
        r"Error: .*the local disk is full.*to /\S+/serve-\w+/model: TMPDIR sets its place", done.stderr.strip()
    ), done.stderr


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("s3://models/team/digits/3", ("digits", 3)),
        ("run/models/digits/12/", ("digits", 12)),
        ("/artifacts/model", ("model", 1)),
        ("model", ("model", 1)),
        ("3", ("3", 1)),
    ],
)
def test_the_name_and_the_version_are_those_of_the_address(address, found):
    assert name_and_version(address) == found
