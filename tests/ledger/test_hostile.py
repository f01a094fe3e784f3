"""Any text and any JSON come back as they were, whatever a database refuses to hold."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text as sql

from levada import Outcome, UsageError
from levada.ledger import Action, Ledger, LedgerError
from levada.ledger.exporting import json_line
from levada.ledger.hostile import json_from, json_to, text_from, text_to
from tests.ledger.turned import DONE, fed, finished

TEXTS = [
    "\x00", "a\x00b\x00", "\x1a", "\x1a0000", "\x1a\x1a001a", "\ud800", "\udfff\ud800", "\ud83d\ude00", "\U0001f600",
    "\\u0000", "\\\\u0000", '"\\\x00"', "\x00" * 50, "\x01\x02\x7f\x80\x9f", "\ufffe\uffff\ufdd0", "\u2028\u2029",
    "e\u0301", "\U0010ffff", "'; DROP TABLE levada_turns; --", "%s %(x)s :x ?", "", " \r\n\t",
]  # fmt: skip
ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()) | st.sampled_from('\x00\x1a\\\ud83d\ude000afu"'))
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner),
    max_leaves=10,
)


class TestEncoding:
    @given(ANY_TEXT)
    def test_any_text_comes_back(self, value: str) -> None:
        stored = text_to(value)
        assert text_from(stored) == value
        assert "\x00" not in stored
        stored.encode()

    @given(ANY_JSON)
    def test_any_json_comes_back(self, value: Any) -> None:
        stored = json_to(value)
        assert json_from(stored) == value
        assert "\\u0000" not in stored.replace("\\\\", "")
        stored.encode()

    @pytest.mark.parametrize("value", TEXTS)
    def test_hostile_text_comes_back_in_both(self, value: str) -> None:
        assert text_from(text_to(value)) == value
        assert json_from(json_to([value, {value: value}])) == [value, {value: value}]

    def test_common_text_is_stored_as_it_is(self) -> None:
        assert text_to("água 水 💧\n\\u0000") == "água 水 💧\n\\u0000"
        assert json_to({"a": "água 💧"}) == '{"a":"água 💧"}'

    def test_numbers_that_json_has_not_come_back_and_no_text_is_taken_for_one(self) -> None:
        value = {
            "a": [math.nan, math.inf, -math.inf],
            "NaN": "NaN",
            "\x1aNaN": ["\x1a-Infinity", '"\x1aNaN"', '\\"NaN'],
        }
        stored = json_to(value)
        assert json.loads(stored, parse_constant=pytest.fail)["a"] == ["\x1aNaN", "\x1aInfinity", "\x1a-Infinity"]
        assert repr(json_from(stored)) == repr(value)
        with pytest.raises(ValueError, match="not JSON compliant"):
            json_to(value, finite=True)

    def test_what_is_nested_too_deep_is_an_error(self) -> None:
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        with pytest.raises(LedgerError, match="nested too deep"):
            json_to(deep)


class TestInTheDatabase:
    @pytest.mark.parametrize("value", TEXTS)
    def test_it_comes_back_from_everywhere(self, ledger: Ledger, value: str) -> None:
        turn = finished(value, id=value or "c", model=value or "m")
        ledger.commit(turn, key="k", actions=[Action("mail", {value: [value]})])
        kept = ledger.get("k")
        assert kept is not None
        assert (kept.answer, kept.model, kept.id) == (turn.answer, turn.model, turn.id)
        assert (kept.parts, kept.choices) == (turn.parts, turn.choices)
        ledger.commit(Outcome(turn, value), key="l", keep_raw=True)  # a review may release what no wire brings
        assert (released := ledger.get("l")) is not None
        assert released.answer == value
        assert ledger.commit(turn, key="r", validators=[lambda turn: value]).reasons == (
            value or "refused without a word",
        )
        assert ledger.refused(key="r")[0].reasons == (value or "refused without a word",)
        got: list[Any] = []
        ledger.dispatch({"mail": lambda action: got.append(action.payload)})
        assert got == [{value: [value]}]

    def test_numbers_and_the_order_of_keys_stay_as_they_were(self, ledger: Ledger) -> None:
        payload = {"z": 1e23, "a": 1.0, "m": 10**30, "b": -0.0, "e": 1e-300, "t": True}
        ledger.commit(finished(), key="k", actions=[Action("mail", payload)])
        got: list[Any] = []
        ledger.dispatch({"mail": lambda action: got.append(action.payload)})
        assert json.dumps(got[0]) == json.dumps(payload)

    def test_a_turn_with_numbers_that_json_has_not_is_stored(self, ledger: Ledger) -> None:
        end = b'data: {"choices":[],"usage":{"prompt_tokens":1,"cost":NaN,"most":1e999}}\n\n'
        note = b'{"type":"file_citation","file_citation":{"file_id":"f","score":-Infinity}}'
        cited = (
            b'data: {"choices":[{"index":0,"delta":{"content":"abc","annotations":[%s]},"finish_reason":"stop"}]}\n\n'
        )
        turn = fed(cited % note, end, DONE).result()
        assert "nan" in repr(turn.usage)
        assert "inf" in repr(turn.citations)
        for committed in (turn, Outcome(turn, "abc"), Outcome(turn, "other")):
            key = f"k{getattr(committed, 'released', '')}"
            assert ledger.commit(committed, key=key).status == "stored"
            assert ledger.commit(committed, key=key).status == "already_stored"
            kept = ledger.get(key)
            assert kept is not None
            assert repr(kept.usage) == repr(turn.usage)
            json.loads(json_line(kept), parse_constant=pytest.fail)
            assert kept.altered or repr(kept.citations) == repr(turn.citations)
        with ledger._database.reading() as connection:
            cast = {"sqlite": "json(usage)", "postgresql": "usage::jsonb"}[connection.dialect.name]
            connection.execute(sql(f"SELECT {cast} FROM levada_turns")).all()

    def test_a_payload_has_none_of_them(self) -> None:
        for number in (math.nan, math.inf):
            with pytest.raises(UsageError, match="finite float"):
                Action("mail", {"n": number})

    def test_a_failure_with_hostile_words_is_kept(self, ledger: Ledger) -> None:
        def fails(action: object) -> None:
            raise ValueError("\x00\ud800" * 1000)

        ledger.commit(finished(), key="k", actions=[Action("mail")])
        assert ledger.dispatch({"mail": fails}, max_attempts=1).dead == 1
        [letter] = ledger.dead_letters()
        assert letter.error_words == ("\x00\ud800" * 1000)[:500]

    def test_documents_are_json_to_the_database_too(self, ledger: Ledger) -> None:
        ledger.commit(finished("a\x00b"), key="k", actions=[Action("mail", {"a": {"b": "\ud800"}})])
        query = {
            "sqlite": "SELECT json_extract(payload, '$.a.b') FROM levada_outbox",
            "postgresql": "SELECT payload::jsonb #>> '{a,b}' FROM levada_outbox",
        }
        with ledger._database.reading() as connection:
            found = connection.execute(sql(query[connection.dialect.name])).scalar_one()
        assert text_from(found) == "\ud800"
