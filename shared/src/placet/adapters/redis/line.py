"""Decides how one connection to Redis is used: commands in one packet, answers in their order, and never a retry."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Connection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from placet.errors import Code, TerminalError

Command = tuple[bytes | str | int, ...]


class Line:
    """One connection, that nobody else uses: commands go out together, and their answers come back in order."""

    def __init__(self, url: str) -> None:
        try:
            pool = ConnectionPool.from_url(
                url, protocol=2, driver_info=None, retry=Retry(NoBackoff(), 0), socket_timeout=None
            )
        except ValueError as error:
            raise TerminalError(Code.SETTING_INVALID, f"the address of Redis is none: {error}") from error
        self._connection: Connection = pool.make_connection()  # type: ignore[no-untyped-call]

    async def connect(self) -> None:
        """If that is not done yet. Raises as `ask`."""
        await self._connection.connect()  # type: ignore[no-untyped-call]

    async def ask(self, *commands: Command) -> list[Any]:
        """One answer a command, errors among them as values. Raises RedisError, OSError; then `drop` the line."""
        await self.connect()
        await self._connection.send_packed_command(self._connection.pack_commands(commands), check_health=False)
        replies: list[Any] = []
        for _ in commands:
            try:
                replies.append(await self._connection.read_response(disable_decoding=True))
            except RedisConnectionError:
                raise  # some of these are answers by their class: the server is loading, the password is wrong
            except ResponseError as error:
                replies.append(error)
        return replies

    async def drop(self) -> None:
        """End the connection: an answer still to come would be taken for another's. The next `ask` makes a new one."""
        await self._connection.disconnect(nowait=True)


def refuse(reply: object) -> None:
    """Raise an answer that is an error."""
    if isinstance(reply, ResponseError):
        raise reply
