"""Who is next, and how long it will take."""

import asyncio

import pytest

from attnflow.web import line
from attnflow.web.costs import FIELD, KEPT, Costs
from attnflow.web.line import Busy, Job, Line, Superseded


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(line.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def job(loop, clock):
    def make(client, slot=None, expected=0.0, name=""):
        return Job(name, {}, client, slot, expected, loop.create_future(), arrived=clock[0])

    return make


def order(line, hands=1):
    found = []
    while (job := line.next([], hands)) is not None:
        found.append(job.name or job.client)
    return found


def test_the_newest_request_of_a_client_wins(job):
    line = Line(9)
    old, new, other = job("a", "view"), job("a", "view"), job("b", "view")
    for each in (old, other, new):
        line.add(each)
    assert line.jobs == [other, new]
    with pytest.raises(Superseded):
        old.answer.result()
    line.add(job("a"))
    line.add(job("a"))  # without a slot all are wanted
    assert len(line.jobs) == 4


def test_clients_take_turns(job, clock):
    line = Line(9)
    for name in ("a1", "a2", "a3"):
        line.add(job("a", name=name))
        clock[0] += 1
    line.add(job("b", name="b1"))
    clock[0] += 1
    seen = []
    for _ in range(4):
        clock[0] += 1
        chosen = line.next([], 1)
        assert chosen is not None
        seen.append(chosen.name)
    assert seen == ["a1", "b1", "a2", "a3"]


def test_what_takes_least_goes_first_but_nobody_waits_forever(job, clock):
    line = Line(9)
    line.add(job("long", expected=20))
    clock[0] += 10
    line.add(job("middle", expected=6))
    assert order(line) == ["middle", "long"]
    line.add(job("long", expected=20))
    clock[0] += 1000
    line.add(job("middle", expected=6))
    assert order(line) == ["long", "middle"]


def test_long_jobs_leave_one_hand_free(job, clock):
    line = Line(9)
    running = job("a", expected=20)
    line.add(job("b", expected=20))
    assert line.next([running], 2) is None
    line.add(job("c"))
    assert line.next([running], 2).client == "c"  # type: ignore
    assert line.next([running], 3).client == "b"  # type: ignore
    found_long = job("d")
    found_long.begun = clock[0]
    line.add(job("e", expected=20))
    clock[0] += 5
    assert line.next([found_long], 2) is None


def test_short_ones_find_a_place_however_many_long_ones_wait(job):
    line = Line(2)
    for client in "ab":
        line.add(job(client, expected=20))
    with pytest.raises(Busy):
        line.add(job("c", expected=20))
    line.add(job("a", "view"))
    line.add(job("b", "view"))
    with pytest.raises(Busy):
        line.add(job("c"))
    line.add(job("b", "view"))  # in the place of its own


def test_a_shorter_one_takes_the_place_of_the_longest(job):
    line = Line(2)
    longest = job("a", expected=30)
    for each in (longest, job("b", expected=20), job("c", expected=10)):
        line.add(each)
    with pytest.raises(Busy):
        longest.answer.result()
    assert order(line) == ["c", "b"]


def test_costs_are_learned():
    costs = Costs()
    assert costs.expected("two", []) < line.SHORT  # a view begins with its defaults
    many = [("heads", "6"), ("samples", "2048"), ("t1", "300")]
    assert costs.expected("heads", many) > line.SHORT  # nothing is known
    costs.learn("heads", many, 13.0)
    assert costs.expected("heads", [*many, ("seed", "3")]) > line.SHORT
    costs.learn("heads", [*many, ("seed", "3")], 0.02)
    assert costs.expected("heads", [*many, ("seed", "4")]) < line.SHORT
    costs.learn("two", [], 0.01)
    assert costs.expected("two", [("c0", "3.1")]) < line.SHORT
    for number in range(2 * KEPT):
        costs.learn("two", [("c0", str(number))], 0.01)
    assert len(costs.measured["two"]) == KEPT


def test_a_number_near_its_default_makes_a_small_difference(client):
    costs = Costs()
    costs.compare_with(client.get("/api/views").json()["views"])
    for view in ("two_tokens", "specialization"):
        costs.learn(view, [], 0.01)
    dragged = [("c0", "5.5"), ("c1", "5"), ("p", "0.1")]
    assert costs.expected("two_tokens", dragged[:2]) < line.SHORT
    assert costs.expected("two_tokens", dragged) < 2 * line.SHORT
    heavy = [("heads", "6"), ("samples", "2048"), ("t1", "300")]
    assert costs.expected("specialization", heavy) > 2 * line.SHORT


@pytest.mark.parametrize("text", ["", "nan", "inf", "-0", "1e400", "x" * 50])
def test_costs_of_nonsense_are_numbers(text):
    costs = Costs()
    costs.learn("two", [("c0", "1")], 0.01)
    assert 0 <= costs.expected("two", [("c0", text)]) <= 2 * FIELD
    costs.learn("two", [("c0", "0"), ("c0", text)], 0.01)
    assert costs.expected("two", [("c0", text), ("x", text)]) >= 0
