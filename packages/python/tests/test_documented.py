"""What README.md and docs/packages.md (of the whole project) show."""

import asyncio
import inspect
import re
from pathlib import Path

import pytest
import redis
import redis.asyncio

import redis_native_lock
import redis_native_lock.asyncio

HERE = Path(__file__).parent.parent
DOCUMENTS = [HERE / "README.md", HERE.parent.parent / "docs/packages.md"]
BLOCKS = [
    pytest.param(block, id=f"{path.name}-{number}")
    for path in DOCUMENTS
    if path.exists()
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", path.read_text(), re.M | re.S))
]


class Enough(Exception):
    pass


@pytest.mark.parametrize("block", BLOCKS)
async def test_a_block(server, block):
    done = []

    def work(*args):
        done.append(args)
        if args:
            raise Enough

    async def charge(customer, token):
        done.append((customer, token))
        return str(token)

    world, client = redis_native_lock, redis
    if "async" in block:
        world, client = redis_native_lock.asyncio, redis.asyncio
    names = {name: work for name in ("report", "compute", "read", "write", "lead")}
    names |= {"charge": charge, "locks": world.Locks(client.Redis(port=server.port)), "LockBusy": world.LockBusy}
    try:
        exec(block.replace("Redis()", f"Redis(port={server.port})"), names)
    except Enough:
        pass
    if inspect.iscoroutinefunction(names.get("pay")):
        done.append(await names["pay"]("42"))
        await names["locks"].aclose()
    assert done
    assert await asyncio.to_thread(server.redis.keys) in ([], [b"nightly"], [b"nightly-report"])
