"""Transports that hand out the whole text so far, again and again."""

from __future__ import annotations

import pytest

from levada import CumulativeText, TransportRewound


class TestCumulativeText:
    def test_it_gives_only_what_is_new(self) -> None:
        text = CumulativeText()
        assert [text.feed(so_far) for so_far in ("", "da", "da", "data: é\n", "data: é\n\n🐙")] == [
            "", "da", "", "ta: é\n", "\n🐙",
        ]  # fmt: skip

    @pytest.mark.parametrize(("so_far", "offset"), [("ab", 2), ("", 0), ("abX", 2), ("abXd", 2), ("Xbcde", 0)])
    def test_a_shrunk_or_changed_prefix_is_an_error(self, so_far: str, offset: int) -> None:
        text = CumulativeText()
        text.feed("abc")
        with pytest.raises(TransportRewound) as caught:
            text.feed(so_far)
        assert (caught.value.offset, caught.value.seen) == (offset, 3)
        assert str(caught.value) == (
            f"the text so far changed at character {offset}, though 3 characters had been taken; "
            "start again with a new CumulativeText and a new parser"
        )

    def test_it_is_spent_then(self) -> None:
        text = CumulativeText()
        text.feed("abc")
        with pytest.raises(TransportRewound) as first:
            text.feed("x")
        for so_far in ("", "abc", "abcd"):
            with pytest.raises(TransportRewound) as later:
                text.feed(so_far)
            assert later.value == first.value
            assert later.value is not first.value

    def test_bytes_are_a_type_error(self) -> None:
        with pytest.raises(TypeError, match=r"^feed\(\) takes str, not bytes$"):
            CumulativeText().feed(b"a")  # type: ignore[arg-type]  # that is the test
