"""What a process keeps of the news of a turn, for all of its readers."""

from __future__ import annotations

from levada.live.topics import RING_CHARACTERS, RING_ENTRIES, Topic
from levada.live.values import Cursor, Entry, entry_id


def entries(first: int, last: int, token: int = 7, data: str = "x") -> list[Entry]:
    return [Entry(entry_id(seq, token), "text", data) for seq in range(first, last + 1)]


def pushed(*ranges: tuple[int, int]) -> Topic:
    topic = Topic()
    for first, last in ranges:
        topic.push(7, first, entries(first, last))
    return topic


def test_nothing_is_known_before_the_first_news() -> None:
    assert Topic().after(Cursor(5, 7)) == []


def test_a_reader_gets_what_follows_its_place() -> None:
    topic = pushed((5, 6), (7, 9))
    for seq in range(4, 10):
        assert topic.after(Cursor(seq, 7)) == entries(seq + 1, 9)


def test_one_that_is_behind_has_to_ask() -> None:
    assert pushed((5, 6)).after(Cursor(3, 7)) is None


def test_a_gap_makes_all_before_it_ask() -> None:
    topic = pushed((5, 6), (8, 9))
    assert topic.after(Cursor(6, 7)) is None
    assert topic.after(Cursor(7, 7)) == entries(8, 9)


def test_what_comes_twice_is_kept_once() -> None:
    assert pushed((5, 8), (5, 8), (7, 9)).after(Cursor(4, 7)) == entries(5, 9)


def test_what_comes_late_is_no_news() -> None:
    topic = pushed((5, 8), (6, 7))
    assert topic.after(Cursor(5, 7)) == entries(6, 8)


def test_another_turn_of_the_id_begins_anew() -> None:
    topic = pushed((5, 8))
    topic.push(9, 1, entries(1, 2, 9))
    assert topic.after(Cursor(0, 9)) == entries(1, 2, 9)
    assert topic.after(Cursor(6, 7)) is None  # a page says that it is another turn


def test_what_is_left_of_an_earlier_turn_is_no_news() -> None:
    assert pushed((5, 8)).after(Cursor(1, 9)) == []


def test_it_is_bounded_in_entries() -> None:
    topic = pushed((1, 3 * RING_ENTRIES))
    assert topic.after(Cursor(2 * RING_ENTRIES, 7)) == entries(2 * RING_ENTRIES + 1, 3 * RING_ENTRIES)
    assert topic.after(Cursor(2 * RING_ENTRIES - 1, 7)) is None


def test_it_is_bounded_in_characters_but_for_the_newest() -> None:
    topic = Topic()
    big = entries(1, 9, data="x" * (RING_CHARACTERS + 1))
    topic.push(7, 1, big)
    assert topic.after(Cursor(8, 7)) == big[8:]
    assert topic.after(Cursor(7, 7)) is None
