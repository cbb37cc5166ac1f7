"""Forwards a port as the API server does: over a WebSocket in the protocol v4.channel.k8s.io."""

import base64
import hashlib
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress

_DATA, _ERROR = b"\x00", b"\x01"
"""Channels of the first forwarded port."""

_BINARY, _CLOSE = 2, 8
"""Kinds of frames, by RFC 6455."""


def forward(connection: socket.socket, headers: Mapping[str, str], port: int, target: tuple[str, int]) -> None:
    """Accept the WebSocket that a client asks for, and carry bytes between it and a server until one side ends.

    Args:
        connection: Connection of the client, whose request has been read.
        headers: Headers of the request.
        port: Port that the request names. The first frame of each channel repeats it.
        target: Address of the server.
    """
    key = headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    accept = base64.b64encode(hashlib.sha1(key.encode(), usedforsecurity=False).digest()).decode()
    answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    connection.sendall(f"{answer}Sec-WebSocket-Accept: {accept}\r\n".encode())
    connection.sendall(b"Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n")
    for channel in (_DATA, _ERROR):
        _send(connection, _BINARY, channel + struct.pack("<H", port))
    try:
        server = socket.create_connection(target)
    except OSError as error:
        _send(connection, _BINARY, _ERROR + f"an error occurred forwarding {port}: {error}".encode())
        return
    with server:
        threading.Thread(target=_answer, args=(server, connection), daemon=True).start()
        with connection.makefile("rb") as frames, suppress(struct.error):
            while True:
                kind, content = _receive(frames)
                if kind == _CLOSE:
                    break
                if content[:1] == _DATA:
                    server.sendall(content[1:])
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)  # The thread reads from it, so that to close it would not end it.


def _answer(server: socket.socket, connection: socket.socket) -> None:
    with suppress(OSError):
        while data := server.recv(32 * 1024):
            _send(connection, _BINARY, _DATA + data)
        _send(connection, _CLOSE, struct.pack(">H", 1000))


def _send(connection: socket.socket, kind: int, content: bytes) -> None:
    size = len(content)
    length = bytes([size]) if size < 126 else b"\x7e" + struct.pack(">H", size)
    connection.sendall(bytes([0x80 | kind]) + length + content)


def _receive(frames) -> tuple[int, bytes]:
    """Return the kind and the content of a frame of the client, which masks it.

    Raises:
        struct.error: The connection has ended.
    """
    kind, length = struct.unpack("BB", frames.read(2))
    size = length & 0x7F
    if size == 126:
        (size,) = struct.unpack(">H", frames.read(2))
    elif size == 127:
        (size,) = struct.unpack(">Q", frames.read(8))
    mask = frames.read(4)
    content = frames.read(size)
    repeated = (mask * (size // 4 + 1))[:size]
    number = int.from_bytes(content, "big") ^ int.from_bytes(repeated, "big")
    return kind & 0x0F, number.to_bytes(size, "big")
