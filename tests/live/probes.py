"""Decides whether a server serves: a word of its own protocol, answered. An open port alone proves nothing."""

from __future__ import annotations

import socket

from tests.live.kinds import Kind

_SAID = {
    Kind.REDIS: b"PING\r\n",
    Kind.POSTGRES: bytes.fromhex("0000000804d2162f"),  # SSLRequest: answered with one letter, before any login
    Kind.RABBITMQ: b"AMQP\x00\x00\x09\x01",  # the protocol header: answered with connection.start
}
_ANSWERED = {
    Kind.REDIS: (b"+PONG", b"-NOAUTH"),  # not -LOADING
    Kind.POSTGRES: (b"N", b"S"),
    Kind.RABBITMQ: (b"\x01\x00\x00",),
}


def answers(kind: Kind, host: str, port: int, timeout_s: float = 2.0) -> bool:
    """Whether the server there speaks its protocol within the time."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as client:
            client.settimeout(timeout_s)
            client.sendall(_SAID[kind])
            return client.recv(64).startswith(_ANSWERED[kind])
    except OSError:
        return False
