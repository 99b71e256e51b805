"""A lane under whatever clients and engine may do, at random: nothing is lost, mixed up or kept."""

from __future__ import annotations

import asyncio
import random

import pytest

from service.errors import EngineError
from tests.engines import expected
from tests.workers.lane_harness import Client, Harness, numbered, until


def _is_begun(read: bytes, requests: list[bytes]) -> bool:
    """Whether these requests begin with what was read; without others, which are all different."""
    return b"".join(requests).startswith(read)


class _Storm:
    """A dozen connections, random requests, clients that leave and bundles that fail."""

    def __init__(self, harness: Harness, seed: int) -> None:
        self.harness = harness
        self.luck = random.Random(seed)
        self.asked = self.right = self.back = self.left = self.refused = 0
        self.ending = False

    async def engine(self) -> None:
        harness, luck = self.harness, self.luck
        while not self.ending or harness.bundles:
            await asyncio.sleep(luck.choice([0, 0, 0.0005]))
            if not harness.bundles:
                continue
            harness.bundles.rotate(-luck.randrange(len(harness.bundles)))
            if luck.random() < 0.15:
                harness.fail(EngineError("engine: a bad row"))
            else:
                harness.finish()
            if luck.random() < 0.1:
                harness.lane.tick()

    async def client(self, requests: int) -> None:
        connection = self.harness.connect(buffers=self.luck.choice([None, 4096]))
        while requests:
            ahead = min(requests, self.luck.choice([1, 1, 1, 2, 3]))
            requests -= ahead
            if not await self._ask(connection, ahead):
                connection = self.harness.connect()

    async def _ask(self, connection: Client, ahead: int) -> bool:
        """Some requests at once; whether the connection is still in the lane."""
        harness, luck = self.harness, self.luck
        asked = []
        for _ in range(ahead):
            layer, count = luck.choice([0, 0, 1]), luck.choice([1, 1, 2, 5, 700, 3000])
            asked.append((layer, numbered(count, luck.randrange(1 << 20))))
        sent = [harness.request(x, f"?layer={layer}") for layer, x in asked]
        self.asked += ahead
        sending = asyncio.ensure_future(connection.send(b"".join(sent)))
        if luck.random() < 0.1:
            await asyncio.sleep(luck.choice([0, 0.001, 0.003]))
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            connection.leave()
            self.left += ahead
            return False
        back = asyncio.ensure_future(harness.comes_back(connection))
        for done, (layer, x) in enumerate(asked):
            reading = asyncio.ensure_future(connection.read())
            await asyncio.wait((reading, back), return_when=asyncio.FIRST_COMPLETED)
            if back.done() and _is_begun(back.result(), sent[done:]):
                # Nothing was lost: it is all there, or still to be read of the connection.
                reading.cancel()
                await asyncio.gather(reading, sending, return_exceptions=True)
                self.back += ahead - done
                return False
            answer = await reading
            if answer.status == 200:
                assert answer.body == expected(x, layer).tobytes()
                self.right += 1
            else:
                assert (answer.status, answer.json()["code"]) == (500, "engine_error")
                self.refused += 1
        back.cancel()
        await asyncio.gather(back, return_exceptions=True)
        await sending
        return True


@pytest.mark.parametrize("seed", range(3))
def test_a_storm_leaves_nothing_behind_and_every_answer_is_right(on_lane, seed):
    async def test(harness: Harness) -> None:
        storm = _Storm(harness, seed)
        engine = asyncio.ensure_future(storm.engine())
        await asyncio.gather(*(storm.client(40) for _ in range(12)))
        await until(lambda: not harness.in_progress.count and not harness.bundles)
        storm.ending = True
        await engine
        assert storm.asked == 480
        assert storm.right + storm.back + storm.left + storm.refused == storm.asked
        assert storm.right > 200
        assert storm.back > 0 < storm.left
        assert storm.right <= harness.counted("ok") <= storm.right + storm.left
        assert harness.counted("engine_error") >= storm.refused
        assert not harness.lane._sent
        assert harness.observed()[2:] == [harness.counted("ok")] * 2
        cancels = harness.cancels()
        assert len(set(cancels)) == len(cancels)

    on_lane(test, max_batch_tokens=4096)
