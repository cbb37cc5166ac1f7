"""A fake Kubernetes API server with a training operator, for benchmarks and tests. See `StubApi`."""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Object = dict[str, Any]

_BEGIN = datetime(2026, 1, 1)
_LINES_OF_A_SECOND = 100
_LINES_OF_A_CHUNK = 500


def log_text(first: int, last: int) -> bytes:
    """Return the lines `first` (inclusive) to `last` (exclusive) of the log of all pods, with time stamps."""
    return b"".join(
        f"{(_BEGIN + timedelta(seconds=number // _LINES_OF_A_SECOND)).isoformat()}"
        f".{number % _LINES_OF_A_SECOND:02d}0000000Z "
        f"line {number:06d} loss=0.1234 accuracy=0.9876 val_loss=0.1234 val_accuracy=0.9876\n".encode()
        for number in range(first, last)
    )


class StubApi:
    """A server process for one TFJob with one pod for each worker.

    The pods run as soon as the job is created. A pod succeeds when its complete log has been read, and the job succeeds
    with its last pod. So the duration of the job is the time that the client needs to read the logs.
    """

    def __init__(self, lines: int, cut: bool) -> None:
        """Start the server process.

        Args:
            lines: Number of lines of each pod.
            cut: Whether the first connection to each log breaks in the middle of the log's middle line.
        """
        # Not a fork, which would copy the memory and the threads of the benchmark.
        context = get_context("spawn")
        self._pipe, server_pipe = context.Pipe()
        self._process = context.Process(target=_serve, args=(server_pipe, lines, cut), daemon=True)
        self._process.start()
        self.port: int = self._pipe.recv()

    def end(self) -> tuple[Counter[str], float]:
        """Stop the server. Return the requests by kind, and the creation time of the job (`time.monotonic`)."""
        self._pipe.send("end")
        requests, created = self._pipe.recv()
        self._process.join()
        return requests, created


def _serve(pipe: Connection, lines: int, cut: bool) -> None:
    asyncio.run(_Server(lines, cut).run(pipe))


class _Server:
    def __init__(self, lines: int, cut: bool) -> None:
        self._lines = lines
        self._chunks = [
            log_text(first, min(first + _LINES_OF_A_CHUNK, lines)) for first in range(0, lines, _LINES_OF_A_CHUNK)
        ]
        self._cut = cut
        self._was_cut: set[str] = set()
        self._requests: Counter[str] = Counter()
        self._created = 0.0
        self._objects: dict[str, Object] = {}
        self._changes: list[tuple[str, bytes]] = []
        self._changed = asyncio.Event()

    async def run(self, pipe: Connection) -> None:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=1000)
        pipe.send(server.sockets[0].getsockname()[1])
        await asyncio.to_thread(pipe.recv)
        pipe.send((self._requests, self._created))

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                method, target, _ = line.decode().split()
                headers = dict[str, str]()
                while field := (await reader.readline()).decode().strip():
                    name, _, value = field.partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self._answer(writer, method, target, json.loads(body or b"{}"))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, method: str, target: str, body: Object) -> None:
        url = urlsplit(target)
        path, query = url.path, dict(parse_qsl(url.query))
        streams = "watch" in query or path.endswith("/log")
        self._requests["log" if path.endswith("/log") else "watch" if streams else method] += 1
        if not streams:
            status, answer = self._resource(method, path, query, body)
            text = json.dumps(answer).encode()
            head = f"HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
            writer.write(head.encode() + text)
            await writer.drain()
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        parts = self._log(path, query, writer) if path.endswith("/log") else self._watch(path, query)
        async for part in parts:
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    def _resource(self, method: str, path: str, query: dict[str, str], body: Object) -> tuple[int, Object]:
        if path == "/apis/kubeflow.org/v1":
            return 200, {"resources": [{"name": "tfjobs"}]}
        if path.endswith("/selfsubjectaccessreviews"):
            return 201, {"status": {"allowed": True}}
        if method == "POST":
            if "dryRun" not in query:
                self._create(f"{path}/{body['metadata']['name']}", body)
            return 201, body
        if method == "GET" and path.rpartition("/")[2] in ("tfjobs", "pods", "events"):
            items = [item for item_path, item in self._objects.items() if item_path.startswith(f"{path}/")]
            return 200, {"kind": "List", "metadata": {"resourceVersion": str(len(self._changes))}, "items": items}
        if path not in self._objects:
            return 404, {"message": f"{path} not found", "code": 404}
        return 200, self._objects.pop(path) if method == "DELETE" else self._objects[path]

    def _create(self, path: str, body: Object) -> None:
        body["metadata"] |= {"uid": path, "creationTimestamp": "2026-01-01T00:00:00Z"}
        self._put("ADDED", path, body)
        if not path.endswith(f"/tfjobs/{body['metadata']['name']}"):
            return
        self._created = time.monotonic()
        core = path.partition("/tfjobs")[0].replace("/apis/kubeflow.org/v1", "/api/v1")
        for index in range(body["spec"]["tfReplicaSpecs"]["Worker"]["replicas"]):
            name = f"{body['metadata']['name']}-worker-{index}"
            labels = {"replica-type": "worker", "replica-index": str(index), "job-name": body["metadata"]["name"]}
            metadata = {
                "name": name,
                "uid": name,
                "labels": {f"training.kubeflow.org/{key}": value for key, value in labels.items()},
                "creationTimestamp": "2026-01-01T00:00:00Z",
            }
            spec = {"nodeName": "node-1", "containers": [{"name": "tensorflow"}]}
            self._put(
                "ADDED", f"{core}/pods/{name}", {"metadata": metadata, "spec": spec, "status": _status("Running")}
            )

    def _put(self, change: str, path: str, body: Object) -> None:
        # The resource version is the number of changes, so a watch continues after that change.
        body["metadata"]["resourceVersion"] = str(len(self._changes) + 1)
        self._objects[path] = body
        self._changes.append((path, json.dumps({"type": change, "object": body}).encode() + b"\n"))
        self._changed.set()
        self._changed = asyncio.Event()

    async def _watch(self, path: str, query: dict[str, str]) -> AsyncIterator[bytes]:
        for number in itertools.count(int(query["resourceVersion"])):
            while number >= len(self._changes):
                await self._changed.wait()
            changed_path, text = self._changes[number]
            if changed_path.startswith(f"{path}/"):
                yield text

    async def _log(self, path: str, query: dict[str, str], writer: asyncio.StreamWriter) -> AsyncIterator[bytes]:
        first = 0
        if "sinceTime" in query:
            since = datetime.fromisoformat(query["sinceTime"].removesuffix("Z")) - _BEGIN
            first = round(since.total_seconds()) * _LINES_OF_A_SECOND
        for number, full_chunk in enumerate(self._chunks):
            begin, last = number * _LINES_OF_A_CHUNK, min((number + 1) * _LINES_OF_A_CHUNK, self._lines)
            chunk = full_chunk if begin >= first else log_text(first, last) if last > first else b""
            if self._cut and path not in self._was_cut and begin <= self._lines // 2 < last:
                self._was_cut.add(path)
                yield chunk[: len(chunk) // 2 + 7]
                writer.transport.close()
                raise ConnectionAbortedError
            if chunk:
                yield _without_times(chunk) if query.get("timestamps") != "true" else chunk
        self._end_pod(path.removesuffix("/log"))

    def _end_pod(self, path: str) -> None:
        pod = self._objects.get(path)
        if not pod or pod["status"]["phase"] == "Succeeded":
            return
        self._put("MODIFIED", path, {**pod, "status": _status("Succeeded")})
        folder = path.rpartition("/")[0]
        pods = [item for item_path, item in self._objects.items() if item_path.startswith(f"{folder}/")]
        if all(item["status"]["phase"] == "Succeeded" for item in pods):
            job_path, job = next(
                (item_path, item) for item_path, item in self._objects.items() if "/tfjobs/" in item_path
            )
            now = "2026-01-01T00:00:00Z"
            end = {"type": "Succeeded", "status": "True", "lastTransitionTime": now}
            self._put("MODIFIED", job_path, {**job, "status": {"conditions": [end]}})


def _status(phase: str) -> Object:
    state = {"running": {}} if phase == "Running" else {"terminated": {"exitCode": 0, "reason": "Completed"}}
    container = {"name": "tensorflow", "state": state, "image": "", "imageID": "", "ready": True, "restartCount": 0}
    return {"phase": phase, "containerStatuses": [container]}


def _without_times(chunk: bytes) -> bytes:
    return b"".join(line.partition(b" ")[2] for line in chunk.splitlines(keepends=True))
