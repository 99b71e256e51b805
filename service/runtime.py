"""Everything one running service is made of, and its life: start, warm up, serve, drain, stop."""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Callable, Iterable

from service import __version__
from service.batching.admission import Admission, Lease, Slots
from service.batching.arena import Arena
from service.batching.batcher import Batcher
from service.batching.health import Health
from service.batching.policy import plan_limits
from service.batching.request import Answer, Holding, PendingRequest
from service.batching.worker import EngineWorker
from service.cgroups import memory_limit_bytes
from service.config import Settings
from service.counts import FrontCounts
from service.engine.base import (
    Engine,
    LendsHostMemory,
    OnGpus,
    OpensDeviceMemory,
    PinsHostMemory,
)
from service.errors import EngineDead, QueueFull, outcomes
from service.front import InProgress
from service.heartbeat import keep_beating
from service.local_regions import LocalRegions
from service.metrics import Metrics
from service.nvml import GpuSampler
from service.process_memory import used_bytes
from service.shared_memory import Regions, RegionTable
from service.shared_requests import SharedRequests
from service.wire.window import Window

logger = logging.getLogger(__name__)

# Free slots kept for reuse: enough for a hundred 4 MiB bodies in flight.
_ARENA_KEEP_BYTES = 512 << 20
# Of the memory that the process may use, for pages of clients' sparse objects.
_SHARED_MEMORY_SHARE = 0.5
# For what nobody waits for any more, such as a warm-up or the batch of a client that left.
_STOP_TIMEOUT_S = 3.0
# On top of what a batch may take, for whatever else may keep the event loop from running.
_STUCK_S = 20.0


class Runtime:
    """One engine and what surrounds it; the Front of whoever serves HTTP in this process.

    Args:
        settings: As given by the user.
        engine: Loaded, not yet warm.
        on_dead: Called once, on the event loop, when only a restart can help.
        reason: Why it is this backend on this device.
        slots: Where bodies are received; memory of this process by default.

    Attributes:
        batcher: Exists from `start` on.
        regions: Clients' shared memory; None where it is not allowed.
        region_table: The same, for those in this process.
        shared_requests: How requests with windows in it are submitted, once started.
        children: Process ids of the front ends; none where HTTP is served in this process.
        in_progress: Entered by every request until its answer is handed to the transport.
        stopped: The engine is closed and its threads are idle.
    """

    batcher: Batcher

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        on_dead: Callable[[], None] = lambda: None,
        reason: str = "",
        slots: Slots | None = None,
    ) -> None:
        self.reason = reason
        self.settings = settings
        self.engine = engine
        self.model = engine.model
        self.health = Health()
        self.admission = Admission(
            slots
            or Arena(
                _ARENA_KEEP_BYTES,
                engine.allocate_host if isinstance(engine, LendsHostMemory) else bytearray,
            ),
            max_queue_tokens=settings.max_queue_tokens,
            max_queue_bytes=settings.max_queue_bytes,
        )
        self._memory_bytes = memory_limit_bytes()
        self.children: Callable[[], Iterable[int]] = tuple
        self.region_table: RegionTable | None = None
        self.regions: Regions | None = None
        self.shared_requests: SharedRequests | None = None
        if settings.client_shared_memory:
            self.region_table = RegionTable(
                engine if isinstance(engine, PinsHostMemory) else None,
                int(_SHARED_MEMORY_SHARE * self._memory_bytes),
                engine if isinstance(engine, OpensDeviceMemory) else None,
            )
            self.regions = LocalRegions(self.region_table)
        self.metrics = Metrics(
            outcomes=outcomes(),
            kernels=engine.kernels,
            build={
                "version": __version__,
                "backend": engine.backend,
                "device": engine.device,
                "model": engine.model.name,
                "python": platform.python_version(),
                "reason": reason,
            },
            peak_flops=engine.peak_flops,
        )
        self._add_gauges()
        gpus = engine.gpus if isinstance(engine, OnGpus) else ()
        # A CPU may take any time for a batch; a GPU that takes seconds for one hangs.
        self._hang_timeout_s = settings.hang_timeout_s if gpus else 0.0
        self._gpu_sampler = GpuSampler(gpus)
        self.metrics.gpus(self._gpu_sampler.readings)
        self.stopped = self._gave_up = False
        self._on_dead = on_dead
        self.in_progress = InProgress()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the engine's threads and begin to warm up; returns before that is over."""
        self._gpu_sampler.start()
        self._worker = EngineWorker(self.engine, lambda: self.admission.requests)
        self.batcher = Batcher(
            self._worker.start,
            model=self.model,
            concurrency=self.engine.concurrency,
            limits=plan_limits(
                max_batch_tokens=self.settings.max_batch_tokens,
                max_queue_delay_s=self.settings.max_queue_delay_s,
                row_bytes=self.model.hidden_size * self.model.dtype.itemsize,
                concurrency=self.engine.concurrency,
            ),
            metrics=self.metrics,
            on_dead=self._died,
            hang_timeout_s=self._hang_timeout_s,
        )
        if self.region_table is not None:
            self.shared_requests = SharedRequests(
                self.region_table,
                self.batcher,
                self.metrics.shared_memory_moved,
                self.settings.max_body_bytes,
            )
        self._tasks.append(asyncio.create_task(self._serve_engine()))

    def begin_drain(self) -> None:
        """Accept nothing new, and let nobody wait for company."""
        self.health.draining()
        self.batcher.drain()

    def give_up(self, error: BaseException) -> None:
        """The time to drain is over: end everything that is in progress with this error."""
        logger.error("%s", error)
        self._gave_up = True
        self.batcher.end_all(error)

    async def admit(self, tokens: int, nbytes: int, *, slot_bytes: int | None = None) -> Lease:
        """Reserve budget, and a slot for the body."""
        return self.admission.admit(tokens, nbytes, slot_bytes=slot_bytes)

    async def grow(self, held: Holding, tokens: int, nbytes: int) -> None:
        """Hold more, because the body turns out to be larger."""
        assert isinstance(held, Lease)
        held.grow(tokens, nbytes)

    async def submit(self, request: PendingRequest) -> asyncio.Future[Answer]:
        """Queue a validated request."""
        return self.batcher.submit(request)

    async def submit_shared(
        self, request: PendingRequest, source: Window | None, target: Window | None
    ) -> asyncio.Future[Answer]:
        """Queue a request whose input or answer lies in a region."""
        lease = request.lease
        assert isinstance(lease, Lease)
        assert self.shared_requests is not None
        return await self.shared_requests.submit(request, lease, source, target)

    async def begin_shared(
        self,
        tokens: int,
        nbytes: int,
        make: Callable[[Holding], PendingRequest],
        source: Window | None,
        target: Window | None,
    ) -> tuple[PendingRequest, asyncio.Future[Answer]]:
        """Admit and queue such a request."""
        request = make(self.admission.admit(tokens, nbytes, slot_bytes=0))
        return request, await self.submit_shared(request, source, target)

    def hold_small(self, tokens: int, nbytes: int) -> Lease | None:
        """Budget for a small request that has arrived; None where it has to be asked for."""
        try:
            return self.admission.admit(tokens, nbytes, slot_bytes=0)
        except QueueFull:
            return None

    def submit_small(self, request: PendingRequest) -> asyncio.Future[Answer]:
        """Queue a validated request."""
        return self.batcher.submit(request)

    def cancel(self, request: PendingRequest) -> None:
        """The client has left."""
        self.batcher.cancel(request)

    async def scrape(self) -> bytes:
        """The text of /metrics."""
        return self.metrics.render()

    async def statistics(self) -> dict[str, int]:
        """Counts and total times for the v2 statistics document."""
        return self.metrics.statistics()

    @property
    def counts(self) -> FrontCounts:
        """Where requests of this process are counted."""
        return self.metrics.front

    @property
    def backend(self) -> str:
        """Short name of the engine's implementation."""
        return self.engine.backend

    @property
    def device(self) -> str:
        """Where the engine runs, for people."""
        return self.engine.device

    async def stop(self) -> None:
        """End the background work and close the engine; a dead or hung engine is left alone."""
        self._gpu_sampler.stop()
        if self.region_table is not None:
            self.region_table.unregister_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # What is given up may be with the engine, and need for ever.
        if self.health.live and not self._gave_up:
            try:
                await asyncio.wait_for(self._worker.stop(), _STOP_TIMEOUT_S)
            except asyncio.TimeoutError:
                logger.warning("the engine is still at work after %g s, left", _STOP_TIMEOUT_S)
            else:
                self.stopped = True

    async def _serve_engine(self) -> None:
        """Warm up, then test the engine with a known answer for as long as the service runs."""
        try:
            await self._worker.call(lambda: self.engine.warm_up(self.settings.max_batch_tokens))
        except Exception as error:
            logger.exception("warm-up failed")
            self.batcher.fail_all(EngineDead(f"warm-up failed: {error}"))
            return
        self.health.serving()
        if self._hang_timeout_s:
            limit_s = self._hang_timeout_s + _STUCK_S
            self._tasks.append(asyncio.create_task(keep_beating(limit_s)))
        logger.info("ready: %s on %s", self.model.name, self.engine.device)
        while interval_s := self.settings.self_test_interval_s:
            await asyncio.sleep(interval_s)
            if not self.health.live:
                return
            await self._self_test()

    async def _self_test(self) -> None:
        try:
            # It may have to wait for a batch to end before it starts, hence twice.
            await asyncio.wait_for(
                self._worker.call(self.engine.self_test), 2 * self._hang_timeout_s or None
            )
        except asyncio.TimeoutError:
            self.batcher.fail_all(
                EngineDead(f"self-test did not end within {2 * self._hang_timeout_s:g} s")
            )
        except EngineDead as error:
            self.batcher.fail_all(error)
        except Exception as error:
            # Whatever it is, the engine did not show that it computes right.
            logger.exception("self-test failed, not ready")
            self.health.self_test(error)
        else:
            self.health.self_test(None)

    def _died(self, error: BaseException) -> None:
        logger.critical("the engine is dead, the process will exit: %s", error)
        self.health.dead(error)
        self._on_dead()

    def _add_gauges(self) -> None:
        admission, health, metrics = self.admission, self.health, self.metrics
        memory_bytes, regions = self._memory_bytes, self.region_table
        for name, help_text, read in (
            (
                "mlp_queue_requests",
                "Requests admitted, not yet running.",
                lambda: admission.requests + metrics.gathered()[0],
            ),
            (
                "mlp_queue_tokens",
                "Rows admitted, not yet running.",
                lambda: admission.tokens + metrics.gathered()[1],
            ),
            (
                "mlp_queue_bytes",
                "Body bytes admitted, not yet running.",
                lambda: admission.bytes + metrics.gathered()[2],
            ),
            (
                "mlp_queue_tokens_limit",
                "max_queue_tokens: beyond so many rows, requests are refused with 429.",
                lambda: self.settings.max_queue_tokens,
            ),
            (
                "mlp_queue_bytes_limit",
                "max_queue_bytes: beyond so many body bytes, requests are refused with 429.",
                lambda: self.settings.max_queue_bytes,
            ),
            (
                "mlp_memory_used_bytes",
                "Resident memory of the engine's process, which has all that is shared, and "
                "anonymous memory of the front ends.",
                lambda: used_bytes(self.children()),
            ),
            (
                "mlp_memory_limit_bytes",
                "What the service may use: the least of its cgroups' limits and the machine's.",
                lambda: memory_bytes,
            ),
            (
                "mlp_engine_healthy",
                "1 while the engine computes right.",
                lambda: health.engine_healthy,
            ),
            (
                "mlp_shared_memory_regions",
                "Regions that clients have registered.",
                lambda: regions.count if regions else 0,
            ),
            (
                "mlp_shared_memory_bytes",
                "Bytes in them.",
                lambda: regions.nbytes if regions else 0,
            ),
            ("mlp_ready", "1 while requests are accepted.", lambda: health.ready),
        ):
            metrics.gauge(name, help_text, read)
