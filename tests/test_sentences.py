"""Where sentences end, and when that is known: any cut of the text gives the same sentences at the same places."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levada import UsageError
from levada.sentences import SentenceCutter

ROOM = 4096


def cut(text: str, *languages: str, room: int = ROOM) -> list[str]:
    return [sentence for _, sentence, _ in places([text], languages or ("en",), room)]


def places(deltas: Iterable[str], languages: Sequence[str] = ("en",), room: int = ROOM) -> list[tuple[int, str, bool]]:
    """Return each sentence with how much of the text it took until it came; -1: it came with the end."""
    cutter = SentenceCutter(languages, room)
    found: list[tuple[int, str, bool]] = []
    fed = 0
    for delta in deltas:
        fed += len(delta)
        found += [(fed, *sentence) for sentence in cutter.feed(delta)]
    return found + [(-1, *sentence) for sentence in cutter.close()]


def before_the_end(text: str, *languages: str) -> list[str]:
    return [sentence for at, sentence, _ in places(text, languages or ("en",)) if at >= 0]


class PanicException(BaseException):  # the name that pyo3 gives it
    pass


class TestConfirmation:
    """A boundary counts once what follows confirms it."""

    def test_a_sentence_comes_when_the_word_after_it_is_complete(self) -> None:
        assert places("One is here. Two is here.") == [(17, "One is here. ", True), (-1, "Two is here.", True)]

    def test_the_last_sentence_comes_with_the_end(self) -> None:
        assert before_the_end("It is done. ") == []
        assert cut("It is done. ") == ["It is done. "]

    def test_what_is_still_in_brackets_can_be_taken_back(self) -> None:
        assert before_the_end('Then (he said "no. ') == []
        assert before_the_end('Then (he said "no. It was late. ') == []
        assert cut('Then (he said "no. It was late. ") all left. Nobody came.') == [
            'Then (he said "no. It was late. ") all left. ',
            "Nobody came.",
        ]

    @pytest.mark.parametrize("opening", ["(", "[", "{", '"', "“", "«", "‘", "「", "《", "`", "'"])
    def test_each_bracket_and_quote_holds_while_it_is_open(self, opening: str) -> None:
        assert before_the_end(f"He came {opening}late. Then he left. And so on") == []

    def test_the_end_of_a_paragraph_settles_what_was_open_in_it(self) -> None:
        assert before_the_end("It was 5 (five. Then ten.\n\nA new one begins")[-1] == "Then ten.\n\n"

    def test_closed_brackets_and_quotes_hold_nothing(self) -> None:
        text = 'He said "No. Never." Then (at last) he left. She stayed.'
        assert cut(text) == ['He said "No. Never." ', "Then (at last) he left. ", "She stayed."]

    def test_a_mark_can_still_grow(self) -> None:
        assert cut("What?! Really... Yes. . . . But no.") == ["What?! ", "Really... ", "Yes. . . . ", "But no."]

    def test_a_paragraph_is_a_boundary_and_a_line_is_not(self) -> None:
        assert cut("A title\n\nAnd text\nthat goes on") == ["A title\n\n", "And text\nthat goes on"]
        assert cut("A title\r\n\r\nAnd text") == ["A title\r\n\r\n", "And text"]

    def test_white_space_belongs_to_the_sentence_before_it(self) -> None:
        assert cut("\n One. \n\n\n Two.  ") == ["\n One. \n\n\n ", "Two.  "]
        assert cut(" \n ") == [" \n "]


class TestLanguages:
    @pytest.mark.parametrize(
        ("languages", "sentences"),
        [
            ("en", ["Dr. Smith paid $3.14 to Mr. Jones, e.g. today. ", "See v. 2.0.1 now. ", "He left."]),
            ("en", ["The U.S. Senate met at 5 p.m. on Monday. ", "It was late."]),
            ("de", ["Das ist z. B. gut, d. h. 3,50 Euro. ", "Am 3. Oktober kam Prof. Dr. Meier. ", "Ende."]),
            ("es", ["El Sr. Pérez vino, p. ej. hoy. ", "¿Qué tal? ", "¡Bien! ", "Costó 1.234,56 euros. ", "Fin."]),
            ("pt", ["O Dr. Silva e a Sra. Costa saíram, p. ex. hoje. ", "Custou R$ 1.234,56. ", "Olá! ", "Fim."]),
            ("pt-BR", ["Leve água, p. ex. duas garrafas. ", "«Está bem. Vamos.» disse ela. ", "Depois vá."]),
            ("fr", ["M. Dupont est là. ", "« Oui. Bien sûr. » dit-il. ", "Et après ? ", "Rien."]),
            ("ja", ["これは文です。", "次の文です！", "「そう。はい。」", "そして終わり？", "はい。"]),
            ("zh", ["这是第一句。", "他说：“好。走吧。”", "这是第二句！", "完"]),
            ("ko", ["안녕하세요. ", "저는 학생입니다. ", "네."]),
            ("hi", ["यह पहला वाक्य है। ", "यह दूसरा है। ", "ठीक।"]),
            ("ar", ["هذه جملة. ", "هل هذا صحيح؟ ", "نعم."]),
            ("ru", ["Это первое предложение. ", "А это второе! ", "Да."]),
        ],
    )
    def test_sentences_of(self, languages: str, sentences: list[str]) -> None:
        assert cut("".join(sentences), languages) == sentences

    def test_a_wide_character_confirms_at_once(self) -> None:
        assert places("これは文です。次の", ["ja"])[0] == (8, "これは文です。", True)

    def test_in_several_languages_a_boundary_counts_where_all_have_it(self) -> None:
        text = "Sucedió p. ej. Ayer vino. Das war z. B. Anna. Fim."
        assert cut(text, "es", "de") == ["Sucedió p. ej. Ayer vino. ", "Das war z. B. Anna. ", "Fim."]

    def test_an_unknown_language_is_cut_as_english(self) -> None:
        assert cut("Dr. A is here. Yes.", "xx") == ["Dr. A is here. ", "Yes."]

    @pytest.mark.parametrize("bad", [(), "", ("en", ""), (1,)])
    def test_languages_are_codes(self, bad: Sequence[str]) -> None:
        with pytest.raises(UsageError, match="languages must be codes"):
            SentenceCutter(bad, ROOM)

    def test_without_sentencex_it_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("levada.sentences.find_spec", lambda name: None)
        with pytest.raises(UsageError, match=r"pip install 'levada\[sentences\]'"):
            SentenceCutter("en", ROOM)


class TestWhatIsNoBoundary:
    def test_inside_urls_numbers_and_addresses(self) -> None:
        text = "See https://a.example/x?y=1.2#z. Or www.b.example/Page. Mail C.D@e.example now. It is 3.14.\n\nEnd"
        assert cut(text) == [
            "See https://a.example/x?y=1.2#z. ",
            "Or www.b.example/Page. ",
            "Mail C.D@e.example now. ",
            "It is 3.14.\n\n",
            "End",
        ]

    def test_a_period_before_lower_case_or_a_digit(self) -> None:
        assert cut("Ver p. ex. este, pág. 3 e art. 5. Fim.", "pt") == ["Ver p. ex. este, pág. 3 e art. 5. ", "Fim."]

    @pytest.mark.parametrize("space", ["\u00a0", "\u202f", "\u2003", "\u2028", "\u3000", " \u00a0", "\n\u00a0"])
    def test_a_wide_space_before_a_period(self, space: str) -> None:
        """sentencex 1.0.32 panics at a capital letter before it."""
        text = f"Take vitamin C{space}. Then rest. "
        assert "".join(cut(text)) == text
        assert cut(text)[-1] == "Then rest. "

    def test_what_sentencex_panics_at_has_no_boundaries(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def panic(language: str, text: str) -> list[str]:
            raise PanicException

        cutter = SentenceCutter(("en",), 20)
        monkeypatch.setattr(cutter, "_segment", panic)
        text = "One. Two. Three. Four. Five. Six."
        pieces = [piece for piece, _ in cutter.feed(text) + cutter.close()]
        assert "".join(pieces) == text
        assert max(map(len, pieces)) <= 20

    def test_after_a_list_marker(self) -> None:
        assert cut("1. First one. Then more.\n2. Second one.\n") == [
            "1. First one. ",
            "Then more.\n",
            "2. Second one.\n",
        ]

    def test_before_closing_emphasis(self) -> None:
        assert cut("**It is done.** Next _one._ Go *on.*\n") == ["**It is done.** ", "Next _one._ ", "Go *on.*\n"]


class TestFences:
    """Fenced code is one sentence, and nothing in it is a boundary."""

    CODE = "```python\nprint('One. Two')\n\nx = 1. Y\n```\n"

    def test_a_fence_is_one_sentence_with_the_blank_lines_after_it(self) -> None:
        text = f"This is code. Look:\n\n{self.CODE}\nIt works. Try it."
        assert cut(text) == ["This is code. ", "Look:\n\n", self.CODE + "\n", "It works. ", "Try it."]

    def test_it_comes_when_something_follows_it(self) -> None:
        assert before_the_end(self.CODE + "\n ") == []
        assert before_the_end(self.CODE + "\n X") == [self.CODE + "\n "]

    @pytest.mark.parametrize(
        "fence",
        [
            "~~~\nA. B\n```\n~~~\n",
            "````\nA. B\n```\nC. D\n````\n",
            "- ```js\n  A. B\n  ```\n",
            "> ```\n> A. B\n> ```\n",
            "   ```\nA. B\n   ```  \n",
            "```\r\nA. B\r\n```\r\n",
        ],
    )
    def test_forms_of_fences(self, fence: str) -> None:
        assert cut(f"Before it. Code\n{fence}After it.")[-2:] == [fence, "After it."]

    def test_code_in_a_line_is_no_fence(self) -> None:
        assert cut("```a``` is code. So it is.\nYes it is. Done.")[0] == "```a``` is code. "

    def test_a_fence_that_is_never_closed_lasts_until_the_end(self) -> None:
        text = "Look:\n```\nA. B\n\nC. D\n"
        assert cut(text) == ["Look:\n", text[6:]]

    def test_a_fence_longer_than_the_room_is_cut_at_a_line(self) -> None:
        text = "```\n" + "x = 1. Y = 2\n" * 20 + "```\nEnd."
        found = places([text], room=100)
        assert all(sentence.endswith("\n") and len(sentence) <= 100 for _, sentence, _ in found[:-1])
        assert [whole for _, _, whole in found] == [False, False, False, True]


class TestRoom:
    """What is held is bounded; a piece that had to be cut says so."""

    def test_a_sentence_longer_than_the_room_is_cut_at_a_word(self) -> None:
        found = places(["word " * 40], room=64)
        assert found[0] == (200, "word " * 12, False)
        assert [whole for _, _, whole in found] == [False] * 4

    def test_the_sentence_after_the_rest_of_a_cut_one_is_whole_again(self) -> None:
        found = places(["word " * 15 + "end. And one more. Then "], room=64)
        assert [(sentence, whole) for _, sentence, whole in found[-2:]] == [("And one more. ", True), ("Then ", True)]
        assert not found[-3][2]

    def test_a_fence_that_fills_the_room_is_whole(self) -> None:
        fence = "```\nA. B\n```\n"
        assert cut(fence + "\n" * 20, room=16) == [fence + "\n" * 3, "\n" * 16, "\n"]
        assert places([fence + "\n" * 20], room=16)[0][2]

    def test_a_likely_boundary_is_the_best_place(self) -> None:
        text = "He said (this is open. It never ends. It goes on and on and on and on."
        assert places([text], room=64)[0] == (70, "He said (this is open. It never ends. ", False)

    def test_text_without_any_place_is_cut_anywhere(self) -> None:
        assert cut("x" * 150, room=64) == ["x" * 64, "x" * 64, "x" * 22]

    @pytest.mark.parametrize("bad", [0, -1, 2.5, "64", None, True])
    def test_the_room_is_a_number_of_characters(self, bad: object) -> None:
        with pytest.raises(UsageError, match="max_hold_chars must be an int from 1 on"):
            SentenceCutter("en", bad)  # type: ignore[arg-type]  # that is the point


PIECES = [
    *"aB1 .!?\n\r\t\"'`()[]{}<>«»“”é日。！「」🏞\u0301،,:-*_~|#@",
    *("\n\n", "```", "```\n", "\n```py\n", "~~~\n", "> ", "- ", "1. ", "Dr. ", "p. ej. ", "z. B. ", '" ', " (", ". . "),
    *("Hello ", "World. ", "Next ", "http://a.b/c", " [1]", "...", "**", "\r\n", "これは文です。", "\ud800"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)


@st.composite
def deltas_of(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.sets(st.integers(0, len(text)))))
    return [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]


class TestAnyCut:
    @settings(max_examples=300, derandomize=True, deadline=None)
    @given(st.data(), TEXTS, st.sampled_from([1, 5, 30, 64, ROOM]), st.sampled_from([("en",), ("pt", "es"), ("ja",)]))
    def test_any_cut_gives_the_same_sentences_at_the_same_places(
        self, data: st.DataObject, text: str, room: int, languages: tuple[str, ...]
    ) -> None:
        deltas = data.draw(deltas_of(text))
        by_character = places(text, languages, room)
        fed = [sum(map(len, deltas[: count + 1])) for count in range(len(deltas))]

        def with_delta(place: int) -> int:
            return place if place < 0 else next(end for end in fed if end >= place)

        assert places(deltas, languages, room) == [(with_delta(at), *rest) for at, *rest in by_character]

    @settings(max_examples=200, derandomize=True, deadline=None)
    @given(TEXTS, st.integers(1, 80))
    def test_joined_they_are_the_text_and_none_is_empty_or_too_long(self, text: str, room: int) -> None:
        sentences = cut(text, room=room)
        assert "".join(sentences) == text
        assert all(0 < len(sentence) <= room for sentence in sentences)

    @settings(max_examples=100, derandomize=True, deadline=None)
    @given(TEXTS, TEXTS)
    def test_what_follows_takes_no_sentence_back(self, text: str, more: str) -> None:
        early = before_the_end(text)
        assert before_the_end(text + more)[: len(early)] == early


GROWN = {
    "prose": "The quick brown fox isn't here. Dr. Smith paid 3.14 (about half) to the man. ",
    "no boundary": "a. ",
    "open brackets": "(A. B ",
    "line feeds": "\n",
    "fences": "```\n",
    "wide": "これは文です。次の文です！",
}


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("name", GROWN)
def test_time_is_linear_in_the_text(name: str) -> None:
    """200,000 characters in small deltas against 25,000: eight times the text, and slack for a busy machine."""

    def seconds(size: int) -> float:
        text = (GROWN[name] * size)[:size]
        deltas = [text[at : at + 5] for at in range(0, size, 5)]
        begun = time.process_time()
        found = places(deltas)
        spent = time.process_time() - begun
        assert "".join(sentence for _, sentence, _ in found) == text
        return spent

    seconds(5_000)  # loads sentencex and its tables
    assert seconds(200_000) < 8 * seconds(25_000) * 2.5 + 0.2
