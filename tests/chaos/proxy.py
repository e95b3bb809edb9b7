"""TCP proxies on control links: cut, silent, one-way, slow, reset, with a flipped bit, or with frames that
come twice.

They run on a thread of their own, so that the links stay alive whatever the test is doing. Bytes that
are held back are delivered when the link is let go, as TCP would do after a partition."""
import asyncio
import random
import socket
import struct
import threading

UP, DOWN = "up", "down"  # router to worker, worker to router
HEADER = 16              # of a frame; the first 4 bytes are the length of what follows it
GREETING = 2             # frames at the start of a link that are never repeated: HELLO and HELLO_OK


class Proxies:
    """The thread; proxies by name."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.by_name = {}

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def add(self, name, host, port):
        p = Proxy(host, port)
        p.port = self.call(p.listen())
        self.by_name[name] = p
        return p

    def do(self, name, what, *args):
        """Proxy.<what>(*args) on the thread of the proxies."""
        async def run():
            return getattr(self.by_name[name], what)(*args)
        return self.call(run())

    def heal(self):
        for name in self.by_name:
            self.do(name, "heal")

    def close(self):
        async def end():
            for p in self.by_name.values():
                p.server.close()
                p.cut()
        self.call(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


class Proxy:
    def __init__(self, host, port):
        self.target = host, port
        self.open = {UP: asyncio.Event(), DOWN: asyncio.Event()}
        self.pairs = set()
        self.heal()
        self.flipped = 0

    def heal(self):
        self.refusing = False
        self.delay = 0.0
        self.flip = {UP: False, DOWN: False}
        self.twice = {UP: False, DOWN: False}
        for e in self.open.values():
            e.set()

    def hold(self, *directions):
        """Swallows what goes in these directions."""
        for d in directions:
            self.open[d].clear()

    def slow(self, seconds):
        self.delay = seconds

    def corrupt(self, direction):
        """Flips one bit of the next piece that goes in this direction."""
        self.flip[direction] = True

    def repeat(self, *directions):
        """Every frame that goes in these directions goes twice."""
        for d in directions:
            self.twice[d] = True

    def refuse(self):
        """Cuts, and takes no new connection until heal."""
        self.refusing = True
        self.cut()

    def cut(self):
        for pair in list(self.pairs):
            for w in pair:
                w.close()

    def reset(self):
        """Closes with RST instead of FIN."""
        for pair in list(self.pairs):
            for w in pair:
                sock = w.get_extra_info("socket")
                if sock:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                w.transport.abort()

    async def listen(self):
        self.server = await asyncio.start_server(self.accepted, "127.0.0.1", 0)
        return self.server.sockets[0].getsockname()[1]

    async def accepted(self, reader, writer):
        try:
            if self.refusing:
                return
            r2, w2 = await asyncio.open_connection(*self.target)
            pair = (writer, w2)
            self.pairs.add(pair)
            try:
                await asyncio.gather(self.pump(reader, w2, UP), self.pump(r2, writer, DOWN))
            finally:
                self.pairs.discard(pair)
                w2.close()
        except OSError:
            pass
        finally:
            writer.close()

    async def pump(self, reader, writer, direction):
        frames = Frames()
        try:
            while read := await reader.read(65536):
                piece = frames.take(read, self.twice[direction])
                await self.open[direction].wait()
                if self.delay:
                    await asyncio.sleep(self.delay)
                if self.flip[direction] and piece:
                    self.flip[direction] = False
                    self.flipped += 1
                    at = random.randrange(len(piece))
                    piece = piece[:at] + bytes([piece[at] ^ 1 << random.randrange(8)]) + piece[at + 1:]
                writer.write(piece)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            try:
                if writer.can_write_eof():
                    writer.write_eof()
            except OSError:
                pass


class Frames:
    """Cuts a stream into whole frames; what is no frame yet waits."""

    def __init__(self):
        self.rest, self.seen = b"", 0

    def take(self, data, twice):
        self.rest += data
        out = []
        while len(self.rest) >= HEADER:
            n = HEADER + int.from_bytes(self.rest[:4], "little")
            if len(self.rest) < n:
                break
            self.seen += 1
            out += [self.rest[:n]] * (2 if twice and self.seen > GREETING else 1)
            self.rest = self.rest[n:]
        return b"".join(out)
