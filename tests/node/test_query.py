"""A query: of two answers only the newer is fetched, and nothing is asked while one is on its way."""

from collections.abc import Callable

import pytest

from zdiloco.core.machine import SYNCER
from zdiloco.core.messages import Status, StatusQuery
from zdiloco.errors import LinkError
from zdiloco.node.params import NetParams
from zdiloco.node.query import ASK_AGAIN_S, Query
from zdiloco.wire.transfer import body_of, checksums_of


def answer(name: str) -> Status:
    data = memoryview(b"x" * 3000)
    return Status(body=body_of(name, 3000, 1024, checksums_of(data, 1024)))


@pytest.mark.net
def test_the_newer_of_two_answers_is_fetched(free_ports: Callable[[int], int], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    with Query(NetParams(port=free_ports(4), stall_s=100.0, give_up_s=1000.0), clock=lambda: now) as query:
        asked: list[type] = []
        monkeypatch.setattr(query._roads, "send", lambda key, message: asked.append(type(message)))
        query.on_time(now)
        assert asked == [StatusQuery]
        for name in ("s/1", "s/2"):
            query.on_message(SYNCER, answer(name), now)
        assert query._transfers.inbox.reserved_bytes == 3000, "the former one is let go"
        now += ASK_AGAIN_S + 1
        query.on_time(now)
        assert asked.count(StatusQuery) == 1, "an answer is on its way"
        query._lost(SYNCER, "s/1", "gone", now)
        query.on_time(now)
        assert asked.count(StatusQuery) == 1
        query._lost(SYNCER, "s/2", "gone", now)
        query.on_time(now)
        assert asked.count(StatusQuery) == 2


@pytest.mark.net
def test_a_question_after_one_without_an_answer_is_asked_at_once(
    free_ports: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer was announced and never came: the second question does not wait for it."""
    with Query(NetParams(port=free_ports(4), stall_s=100.0, give_up_s=1000.0)) as query:
        asked: list[type] = []
        monkeypatch.setattr(query._roads, "send", lambda key, message: asked.append(type(message)))
        query.on_message(SYNCER, answer("s/1"), 0.0)
        for count in (1, 2):
            with pytest.raises(LinkError, match="no syncer answers"):
                query.ask(0.05)
            assert asked.count(StatusQuery) == count
            assert query._transfers.inbox.reserved_bytes == 0
            query.on_message(SYNCER, answer(f"s/{count + 1}"), 0.0)
