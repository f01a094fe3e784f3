"""Only finished turns are committed, once for each key, with their actions or not at all."""

from __future__ import annotations

import pytest

from levada.errors import KeyConflict
from levada.finished import FinishedTurn
from levada.ledger import Action, Ledger
from tests.turn.chat import DONE, fed, stop, text


def finished(answer: str = "water", finish: str = "stop") -> FinishedTurn:
    return fed(text(answer), stop(finish=finish), DONE).result()


class TestOnceForEachKey:
    def test_the_same_again_is_already_stored(self, ledger: Ledger) -> None:
        turn, actions = finished(), [Action("mail", {"to": "a"})]
        assert ledger.commit(turn, key="k", actions=actions).status == "stored"
        assert ledger.commit(turn, key="k", actions=actions).status == "already_stored"
        assert (ledger.count(), ledger.queued()) == (1, {"mail": 1})

    def test_another_content_is_a_conflict(self, ledger: Ledger) -> None:
        ledger.commit(finished(), key="k")
        with pytest.raises(KeyConflict, match="another turn"):
            ledger.commit(finished("wine"), key="k")
        assert (stored := ledger.get("k")) is not None
        assert stored.answer == "water"
