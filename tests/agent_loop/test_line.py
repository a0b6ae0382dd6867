"""A caller's own line to the service of its machine: what goes over it, and what its end means."""

import asyncio
import os
import pickle

import pytest

from ragen.agent_loop.line import Door, connected
from ragen.agent_loop.remote import _Channel
from ragen.agent_loop.service_actor import ServiceActor
from ragen.agent_loop.service_settings import ServiceSettings
from ragen.agent_loop.whose import this_process
from ragen.errors import InputError, SessionLostError

LONG = bytes(3 << 20)  # more than a socket holds


def config():
    part = {"env_groups": 1, "group_size": 8, "env_configs": {"tags": ["Walk"], "n_groups": [1]}}
    walk = {"env_type": "support.faulty_envs:Walk", "max_actions_per_traj": 99}
    settings = {"use_multiprocessing": False, "crash_report_dir": None, "train": part, "val": part}
    return {"es_manager": settings, "custom_envs": {"Walk": walk}}


class NoRay:
    """The handle of an actor of this process, whose requests must not come as calls."""

    def __init__(self, actor):
        self.beat = self
        self._actor = actor

    def remote(self, *given):
        return asyncio.ensure_future(self._actor.beat(*given))


def run(work):
    async def within():
        actor = ServiceActor(config(), end=lambda: None)
        try:
            return await asyncio.wait_for(work(actor), 30)
        finally:
            await actor.shut_down()

    return asyncio.run(within())


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


def test_requests_and_answers_go_over_the_line_alone():
    async def work(actor):
        channel = _Channel(NoRay(actor), ServiceSettings())
        await channel.greet()
        opened = await asyncio.gather(*(channel.ask("open", ("Walk", seed), {}, 20) for seed in range(20)))
        turns = (channel.ask("play", (one.session, 0, ["a"], 9), {}, 20) for one in opened)
        played = await asyncio.gather(*turns)
        with pytest.raises(InputError, match="its next one is 1"):
            await channel.ask("play", (opened[0].session, 5, ["a"], 9), {}, 20)
        stats = await channel.ask("stats", (), {}, 20)
        channel.fail("done")
        return played, stats

    played, stats = run(work)
    assert all(result.info["place"] for result in played)
    assert (stats.turns, stats.batches, stats.sessions) == (20, 1, 20)


def test_the_service_s_end_ends_what_was_asked():
    async def work(actor):
        channel = _Channel(NoRay(actor), ServiceSettings())
        await channel.greet()
        await channel.ask("open", ("Walk", 1), {}, 20)
        (caller,) = actor._callers.values()
        caller.line.close()  # as the kernel does for a process that is no more
        await until(lambda: channel.error)
        with pytest.raises(SessionLostError, match="is gone"):
            await channel.ask("stats", (), {}, 20)
        return caller.line, (await actor.stats()).sessions

    line, sessions = run(work)
    assert line is None
    assert sessions == 1  # until its caller is known to be gone


def test_a_caller_that_is_parted_with_sees_the_end_of_its_line():
    async def work(actor):
        sign = await actor.beat("me", this_process())
        line = await connected(sign.door, "me")
        line.send(pickle.dumps([(0, "open", ("Walk", 1), {})]))
        ((number, is_result, _),) = pickle.loads(await line.receive())
        await actor.leave("me")
        with pytest.raises(EOFError):
            await line.receive()
        return number, is_result, (await actor.stats()).sessions

    assert run(work) == (0, True, 0)


def test_nobody_is_let_in_who_has_not_beaten_or_has_a_line_already():
    async def work(actor):
        sign = await actor.beat("me", this_process())
        first = await connected(sign.door, "me")
        await until(lambda: actor._callers["me"].line)
        for name in ("me", "somebody", "x" * 100):
            line = await connected(sign.door, name)
            with pytest.raises(EOFError):
                await line.receive()
        first.close()

    run(work)


def test_long_frames_arrive_whole_and_where_nobody_listens_there_is_no_line():
    async def work():
        came = asyncio.Queue()

        async def visit(line, name):
            await came.put((name, await line.receive()))
            line.send(LONG)

        door = Door(visit)
        addresses = await asyncio.gather(door.open(), door.open())
        line = await connected(addresses[0], "me")
        line.send(LONG)
        both = await came.get(), await line.receive()
        door.close()
        line.close()
        return both, len(set(addresses)), await connected("ragen-nowhere", "me"), await connected("", "me")

    (told, back), addresses, *nowhere = asyncio.run(work())
    assert told == ("me", LONG) and back == LONG
    assert addresses == 1 and nowhere == [None, None]


def test_another_user_s_process_is_not_spoken_with(monkeypatch):
    async def work():
        visits = []

        async def visit(line, name):
            visits.append(name)

        door = Door(visit)
        address = await door.open()
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: -7)  # as both ends look to each other
            assert await connected(address, "me") is None
            reader, writer = await asyncio.open_unix_connection(f"\0{address}")
            assert await reader.read() == b""
        writer.close()
        door.close()
        return visits

    assert asyncio.run(work()) == []
