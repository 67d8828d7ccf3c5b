"""A tunnel, as ssh -L makes one: four ports at the near end, all their connections in one to the far end.

Rule: a piece on the way is a connection's number, its road, a length and so many bytes; one of no bytes ends it.
"""

import asyncio
import struct
import threading
from contextlib import suppress

HOST = "127.0.0.1"
HEAD = struct.Struct("<IBI")
PIECE = 65_536
ROADS = range(4)
LIMIT_S = 30.0


class End:
    """One end of the tunnel. `dial`: the first of the ports that what comes out of it is connected to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dial: int = 0) -> None:
        self._reader, self._writer, self._dial = reader, writer, dial
        self._open: dict[int, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, number: int, road: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection goes through the tunnel from now on."""
        self._open[number] = writer
        task = asyncio.ensure_future(self._pump(number, road, reader))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pump(self, number: int, road: int, reader: asyncio.StreamReader) -> None:
        data = b"?"
        while data:
            try:
                data = await reader.read(PIECE)
            except ConnectionError:
                data = b""
            self._writer.write(HEAD.pack(number, road, len(data)) + data)
            await self._writer.drain()

    async def serve(self) -> None:
        """Hand on what comes out of the tunnel, until it ends."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                number, road, nbytes = HEAD.unpack(await self._reader.readexactly(HEAD.size))
                data = await self._reader.readexactly(nbytes)
                if number not in self._open and self._dial and data:
                    self.take(number, road, *await asyncio.open_connection(HOST, self._dial + road))
                sink = self._open.get(number)
                if sink is None:
                    continue
                if data:
                    sink.write(data)
                else:
                    self._open.pop(number).close()

    def close(self) -> None:
        """End what still goes through."""
        for writer in [*self._open.values(), self._writer]:
            writer.close()
        for task in self._tasks:
            task.cancel()


class Tunnel:
    """Listens on `base`..+3; all goes by the one port `single` to `target`..+3. `connections`: through that port."""

    def __init__(self, base: int, single: int, target: int) -> None:
        self._base, self._single, self._target = base, single, target
        self.connections = 0
        self._ends: list[End] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tunnel", daemon=True)
        self._thread.start()
        assert self._ready.wait(LIMIT_S)

    def close(self) -> None:
        """End everything."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        self._loop.run_until_complete(self._main())
        self._loop.close()

    async def _main(self) -> None:
        self._stopping = asyncio.Event()
        far = await asyncio.start_server(self._arrived, HOST, self._single)
        near = End(*await asyncio.open_connection(HOST, self._single))
        serving = [asyncio.ensure_future(near.serve())]
        numbers = iter(range(1, 2**32))
        servers = [far]
        for road in ROADS:

            def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, road: int = road) -> None:
                near.take(next(numbers), road, reader, writer)

            servers.append(await asyncio.start_server(taken, HOST, self._base + road))
        self._ready.set()
        await self._stopping.wait()
        for server in servers:
            server.close()
        for end in [near, *self._ends]:
            end.close()
        await asyncio.gather(*serving)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait(others, timeout=LIMIT_S) if others else None

    async def _arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        end = End(reader, writer, self._target)
        self._ends.append(end)
        await end.serve()
