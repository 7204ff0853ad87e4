"""Chat templates under limits: those that never end or fill the memory are ended."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from npusim import Error
from npusim.serve.templates import LimitedTemplate

pytest.importorskip("jinja2", reason="needs the extra serve")

TURNS = [{"role": "user", "content": "é"}]


@contextmanager
def limited(source: str, **limits: Any) -> Iterator[LimitedTemplate]:
    template = LimitedTemplate(source, {"bos_token": "<s>"}, **limits)
    yield template
    template.close()


async def render(template: LimitedTemplate, turns: Any = TURNS, **variables: Any) -> str:
    return await template.render(turns, answer=True, variables=variables)


def test_renders_as_the_template_does() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}"
        "{{ add_generation_prompt }} {{ think }}"
    )

    async def both() -> list[str]:
        with limited(source) as template:
            return [await render(template, think=n) for n in range(2)]

    assert asyncio.run(both()) == ["<s>user: é;True 0", "<s>user: é;True 1"]


def test_variables_of_a_request_replace_nothing_of_ours() -> None:
    async def one() -> str:
        with limited("{{ bos_token }}{{ messages | length }}") as template:
            return await render(template, bos_token="x", messages=[])

    assert asyncio.run(one()) == "<s>1"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set n = 8 + (messages | length) %}{{ n ** (n ** n) }}",
    ],
    ids=["loops", "power"],
)
def test_one_that_takes_too_long_is_ended(source: str) -> None:
    """And the next conversation is served, by a process of its own."""

    async def run() -> None:
        switch = "{% if messages[0].content == 'bad' %}" + source + "{% endif %}fine"
        with limited(switch, seconds=1.0) as template:
            began = time.monotonic()
            with pytest.raises(Error, match="takes more"):
                await render(template, [{"role": "user", "content": "bad"}])
            assert time.monotonic() - began < 20
            assert await render(template) == "fine"

    asyncio.run(run())


def test_one_that_takes_too_long_to_compile_is_refused() -> None:
    """Jinja computes constants when it compiles."""

    async def run() -> None:
        with limited("{{ 9 ** (9 ** 9) }}", seconds=0.5) as template:
            for _ in range(2):
                with pytest.raises(Error, match="takes more"):
                    await render(template)

    asyncio.run(run())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")
@pytest.mark.parametrize(
    "source",
    ["{{ 'a' * 10 ** 10 }}", "{% set n = namespace(x='ab' * 9) %}{% for i in range(60) %}"
     "{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}", "{{ '%1000000000d' % 1 }}"],
    ids=["product", "doubling", "width"],
)  # fmt: skip
def test_one_that_takes_too_much_memory_is_refused(source: str) -> None:
    switch = "{% if messages[0].content == 'bad' %}" + source + "{% endif %}fine"

    async def run() -> None:
        with limited(switch) as template:
            with pytest.raises(Error, match=r"memory|takes more|fails"):
                await render(template, [{"role": "user", "content": "bad"}])
            assert await render(template) == "fine"

    asyncio.run(run())


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% include '/etc/passwd' %}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('no such turn') }}",
        "{{ 1 // 0 }}",
        "{{ undefined.attribute }}",
    ],
)
def test_one_that_reaches_out_or_fails_is_refused(source: str) -> None:
    async def run() -> None:
        with limited(source) as template, pytest.raises(Error, match="template"):
            await render(template)

    asyncio.run(run())


def test_conversations_wait_for_each_other() -> None:
    async def run() -> list[str]:
        with limited("{{ messages[0].content }}") as template:
            turns = [[{"role": "user", "content": str(n)}] for n in range(20)]
            return await asyncio.gather(*(render(template, turn) for turn in turns))

    assert asyncio.run(run()) == [str(n) for n in range(20)]


def test_who_stops_waiting_leaves_the_next_one_its_own_answer() -> None:
    async def run() -> str:
        source = (
            "{% if messages[0].content == 'slow' %}{% for a in range(9000) %}"
            "{% for b in range(999) %}{% endfor %}{% endfor %}{% endif %}{{ messages[0].content }}"
        )
        with limited(source) as template:
            await render(template)
            slow = asyncio.create_task(render(template, [{"role": "user", "content": "slow"}]))
            await asyncio.sleep(0.1)
            slow.cancel()
            return await render(template)

    assert asyncio.run(run()) == "é"
