"""A web application whose clients hang up."""

import asyncio
import contextlib
import random

import pytest
import redis.asyncio
import uvicorn
from conftest import soon
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from redis_native_lock.asyncio import Locks


class HangUp(BaseHTTPMiddleware):
    """Such a middleware, of which there are many, cancels the handler by anyio when the client goes."""

    async def dispatch(self, request, call_next):
        handling = asyncio.ensure_future(call_next(request))
        while not handling.done():
            await asyncio.wait({handling}, timeout=0.005)
            if await request.is_disconnected():
                handling.cancel()
                break
        return await handling


@pytest.mark.parametrize("delay", [0, 0.1])
async def test_500_requests_hung_up(server, proxy, delay):
    proxy.delay = delay
    client = redis.asyncio.Redis(port=proxy.port, max_connections=100, client_name="app")
    locks = Locks(client)
    served = 0

    async def order(request):
        nonlocal served
        async with locks.lock(f"customer:{request.path_params['customer']}", wait=20):
            await asyncio.sleep(0.01)
            served += 1
            return PlainTextResponse("done")

    app = Starlette(routes=[Route("/{customer}", order)])
    app.add_middleware(HangUp)
    config = uvicorn.Config(app, port=0, log_level="critical", lifespan="off")
    web = uvicorn.Server(config)
    serving = asyncio.create_task(web.serve())
    await soon(lambda: web.started)
    port = web.servers[0].sockets[0].getsockname()[1]
    rng = random.Random(5)

    async def ask(customer, patience=None):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /%d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % customer)
        try:
            return await asyncio.wait_for(reader.read(), patience)
        except TimeoutError:
            return b""
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    for _ in range(10):
        # One of ten is patient.
        patience = [None if number % 10 == 0 else rng.random() * (0.2 + 4 * delay) for number in range(50)]
        answers = await asyncio.gather(*(ask(rng.randrange(5), each) for each in patience))
    assert 0 < served < 500, "some were served, some hung up"
    for customer in range(5):
        assert b"done" in await ask(customer, 20), answers

    await soon(lambda: server.redis.info("lock")["lock_places"] == 0 and not server.redis.keys("customer:*"))
    assert not locks.holds
    # All of the pool's are free again, and there is one more for the subscription.
    pool = client.connection_pool
    await soon(lambda: not pool._in_use_connections)
    named = [one for one in server.redis.client_list() if one["name"] == "app"]
    assert len(named) <= len(pool._available_connections) + 1
    web.should_exit = True
    await serving
    await locks.aclose()
    await client.aclose()
