"""The twins compared with each other: names, signatures, words, results, errors, and what is left after an error."""

from __future__ import annotations

import inspect
import sys
from array import array
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire import JSON_ATOMS, SSE_ATOMS, cut, json_streams, plain, small_limits, sse_streams

Twins = tuple[ModuleType, ModuleType]
Call = tuple[str, tuple[Any, ...]]  # a method's name and its arguments

CLASSES = ("Event", "EventParser", "JsonArray", "Utf8Decoder")
BAD_LIMITS = (0, -1, 2**63, 10**5_000, True, "64", None, 1.0)
STATE = ("last_event_id", "retry", "ignored_lines", "closed", "pending")


def methods_and_properties() -> list[Any]:
    """Name every public member of the reference twin's classes."""
    reference = pytest.importorskip("levada._hotpath_py")
    return [
        pytest.param(cls, name, id=f"{cls}.{name}")
        for cls in CLASSES
        for name in vars(getattr(reference, cls))
        if not name.startswith("_")
    ]


class TestNames:
    def test_both_define_the_same_public_classes(self, twins: Twins) -> None:
        for twin in twins:
            defined = {n for n, v in vars(twin).items() if isinstance(v, type) and v.__module__ == twin.__name__}
            assert {name for name in defined if not name.startswith("_")} == {
                *CLASSES,
                "TextLog",
                "Stencil",
            }  # tests/turn

    @pytest.mark.parametrize("cls", CLASSES)
    def test_each_class_has_the_same_public_members(self, twins: Twins, cls: str) -> None:
        reference, compiled = ({n for n in dir(getattr(twin, cls)) if not n.startswith("_")} for twin in twins)
        assert compiled == reference

    @pytest.mark.parametrize("cls", CLASSES)
    def test_constructors_have_the_same_signature(self, twins: Twins, cls: str) -> None:
        reference, compiled = (bare_signature(getattr(twin, cls)) for twin in twins)
        assert compiled == reference

    @pytest.mark.parametrize("cls", CLASSES)
    def test_classes_have_the_same_docstring(self, twins: Twins, cls: str) -> None:
        reference, compiled = (inspect.getdoc(getattr(twin, cls)) for twin in twins)
        assert compiled == reference
        assert reference
        assert not reference.startswith(cls + "(")  # the signature is no part of the words

    @pytest.mark.parametrize(("cls", "name"), methods_and_properties())
    def test_members_have_the_same_signature_and_docstring(self, twins: Twins, cls: str, name: str) -> None:
        reference, compiled = (getattr(twin, cls) for twin in twins)
        if callable(getattr(reference, name)):
            assert bare_signature(getattr(compiled(), name)) == bare_signature(getattr(reference(), name))
        if cls != "Event" or name == "json":  # its fields are described in the class
            assert inspect.getdoc(getattr(compiled, name)) == inspect.getdoc(getattr(reference, name))


def bare_signature(function: Callable[..., object]) -> inspect.Signature:
    """Return a signature without annotations, which the compiled twin leaves to the reference."""
    signature = inspect.signature(function)
    bare = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    return signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)


class TestResults:
    """Arbitrary bytes, arbitrarily cut, through any mixture of calls: the same outcome, call by call."""

    @given(cut(sse_streams | st.binary(max_size=60)), st.data(), st.none() | small_limits)
    def test_event_parser(self, twins: Twins, chunks: list[bytes], data: st.DataObject, limit: int | None) -> None:
        methods = data.draw(st.lists(st.sampled_from(["feed", "feed", "feed_all"]), min_size=1, max_size=4))
        calls: list[Call] = [(methods[n % len(methods)], (chunk,)) for n, chunk in enumerate(chunks)]
        options = {} if limit is None else {"max_event_bytes": limit}
        same(
            twins,
            "EventParser",
            options,
            [*calls, ("close", ()), ("close", ()), ("feed", (b"",)), ("feed_all", (b"",))],
        )

    @given(st.lists(st.text(max_size=4) | st.sampled_from(SSE_ATOMS).map(lambda atom: atom.decode("utf-8", "replace"))))
    def test_event_parser_with_text(self, twins: Twins, texts: list[str]) -> None:
        same(twins, "EventParser", {}, [("feed_text", (text,)) for text in texts])

    @given(cut(sse_streams | st.binary(max_size=30)), st.sampled_from(["replace", "strict"]), st.booleans())
    def test_utf8_decoder(self, twins: Twins, chunks: list[bytes], errors: str, reset: bool) -> None:
        calls: list[Call] = [("decode", (chunk,)) for chunk in chunks]
        calls += [("decode", (b"\xf0\x9f", True)), ("decode", (b"",)), *([("reset", ())] if reset else [])]
        same(twins, "Utf8Decoder", {"errors": errors}, [*calls, ("decode", (b"a",))])

    @given(cut(json_streams), st.none() | small_limits)
    def test_json_array(self, twins: Twins, chunks: list[bytes], limit: int | None) -> None:
        options = {} if limit is None else {"max_item_bytes": limit}
        calls: list[Call] = [("feed", (chunk,)) for chunk in chunks]
        same(twins, "JsonArray", options, [*calls, ("close", ()), ("close", ()), ("feed", (b"",))])

    @given(st.lists(st.sampled_from(JSON_ATOMS + SSE_ATOMS), max_size=30))
    def test_json_array_on_anything(self, twins: Twins, atoms: list[bytes]) -> None:
        same(twins, "JsonArray", {}, [("feed", (atom,)) for atom in (b"[", b"{", *atoms)])


STREAM = b'id: 7\nevent: b\nretry: 5\ndata: [{}]\nnope\n\n: c\n[{},{"a":1}]'


def views() -> dict[str, Any]:
    """Return every kind of object that holds bytes: those to be read, by what they are."""
    padded = bytes(byte for pair in zip(STREAM, STREAM[::-1], strict=True) for byte in pair)

    class Bytes(bytes):
        def __len__(self) -> int:
            raise AssertionError("nobody's code runs inside feed")

    return {
        "bytes": STREAM,
        "bytearray": bytearray(STREAM),
        "memoryview": memoryview(STREAM),
        "writable memoryview": memoryview(bytearray(STREAM)),
        "strided memoryview": memoryview(padded)[::2],
        "backward memoryview": memoryview(STREAM[::-1])[::-1],
        "memoryview of words": memoryview(array("H", STREAM + b" " * (len(STREAM) % 2))),
        "memoryview of signed chars": memoryview(array("b", STREAM)),
        "two-dimensional memoryview": memoryview(STREAM + b" " * (len(STREAM) % 2)).cast(
            "B", (2, -(-len(STREAM) // 2))
        ),
        "subclass of bytes": Bytes(STREAM),
        "empty bytes": b"",
        "empty bytearray": bytearray(),
        "empty memoryview": memoryview(b""),
        "strided memoryview of one byte": memoryview(b"d")[::2],
    }


class TestArguments:
    @pytest.mark.parametrize("kind", views())
    def test_all_that_holds_bytes_is_read_as_those_bytes(self, twins: Twins, kind: str) -> None:
        chunk = views()[kind]
        exact = memoryview(chunk).tobytes()
        for cls, method in (
            ("EventParser", "feed"),
            ("EventParser", "feed_all"),
            ("Utf8Decoder", "decode"),
            ("JsonArray", "feed"),
        ):
            outcomes = same(twins, cls, {}, [(method, (chunk,))])
            assert outcomes == same(twins, cls, {}, [(method, (exact,))])

    @pytest.mark.parametrize(
        "chunk",
        ["data", None, 1, 1.5, [100], (100,), {}, object, array("B", b"data"), iter(b"data")],
        ids=lambda chunk: type(chunk).__name__,
    )
    def test_anything_else_is_a_clear_type_error(self, twins: Twins, chunk: object) -> None:
        for cls, method in (
            ("EventParser", "feed"),
            ("EventParser", "feed_all"),
            ("Utf8Decoder", "decode"),
            ("JsonArray", "feed"),
        ):
            [(kind, error, message, *_)] = same(twins, cls, {}, [(method, (chunk,))])
            assert (kind, error) == ("raised", TypeError)
            assert message.startswith(f"{method}() takes bytes, bytearray or memoryview, not {type(chunk).__name__}")

    @pytest.mark.parametrize("text", [b"data", bytearray(b"data"), None, 1, ["data"]])
    def test_feed_text_takes_nothing_but_text(self, twins: Twins, text: object) -> None:
        [(kind, error, *_)] = same(twins, "EventParser", {}, [("feed_text", (text,))])
        assert (kind, error) == ("raised", TypeError)

    def test_a_str_of_another_class_is_read_as_its_text(self, twins: Twins) -> None:
        class Text(str):
            __slots__ = ()

            def encode(self, *_: object) -> bytes:
                raise AssertionError("nobody's code runs inside feed_text")

        [outcome] = same(twins, "EventParser", {}, [("feed_text", (Text("data: a\n\n"),))])
        assert outcome[0] == "returned"

    def test_a_released_memoryview_is_an_error_that_spends_nothing(self, twins: Twins) -> None:
        view = memoryview(b"data")
        view.release()
        calls: list[Call] = [("feed", (b"data: a\n",)), ("feed", (view,)), ("feed", (b"\n",))]
        outcomes = same(twins, "EventParser", {}, calls)
        assert [outcome[0] for outcome in outcomes] == ["returned", "raised", "returned"]

    @pytest.mark.parametrize(
        ("cls", "options"),
        [
            *[("EventParser", {"max_event_bytes": value}) for value in BAD_LIMITS],
            *[("JsonArray", {"max_item_bytes": value}) for value in BAD_LIMITS],
            *[("EventParser", {"last_event_id": value}) for value in (None, b"", 7)],
            *[("Utf8Decoder", {"errors": value}) for value in ("ignore", "x" * 500, None, 7)],
            *[("Event", {name: 5.5}) for name in ("event", "data", "id", "retry")],
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )  # fmt: skip
    def test_bad_options_are_refused_in_the_same_words(self, twins: Twins, cls: str, options: dict[str, Any]) -> None:
        outcomes = [call(getattr(twin, cls), options) for twin in twins]
        assert outcomes[0] == outcomes[1]
        assert outcomes[0][0] == "raised"

    @pytest.mark.parametrize("cls", CLASSES)
    def test_calls_that_do_not_fit_are_type_errors(self, twins: Twins, cls: str) -> None:
        for twin in twins:  # the words are Python's and Cython's own
            with pytest.raises(TypeError):
                getattr(twin, cls)(nope=1)
        for twin in twins:
            for method in ("feed", "feed_all"):
                with pytest.raises(TypeError):
                    getattr(twin.EventParser(), method)(chunk=b"")
                with pytest.raises(TypeError):
                    getattr(twin.EventParser(), method)()
            assert twin.Utf8Decoder().decode(chunk=b"a", final=True) == "a"


class TestState:
    def test_a_second_init_begins_anew(self, twins: Twins) -> None:
        def begin_anew(twin: ModuleType) -> object:
            parser = twin.EventParser(max_event_bytes=20)
            with pytest.raises(twin.EventTooLarge):
                parser.feed(b"id: 7\nretry: 5\n\nnope\n" + b"data: " + b"x" * 99)
            parser.__init__(last_event_id="8")
            state = [getattr(parser, name) for name in STATE[:3]]
            return state, [plain(event) for event in parser.feed(b"data: a\n\n")], parser.close()

        assert begin_anew(twins[0]) == begin_anew(twins[1])

    @pytest.mark.parametrize("cls", CLASSES)
    def test_attributes_are_read_only(self, twins: Twins, cls: str) -> None:
        for twin in twins:
            instance = getattr(twin, cls)()
            names = [
                name for name in dir(instance) if not name.startswith("_") and not callable(getattr(instance, name))
            ]
            for name in [*names, "of_your_own"]:
                with pytest.raises(AttributeError):
                    setattr(instance, name, None)

    def test_events_print_and_hash_alike(self, twins: Twins) -> None:
        for fields in ((), ("b", "a\n'\"", "é", 5), ("b", "", "", 10**9_999)):
            reference, compiled = (twin.Event(*fields) for twin in twins)
            assert repr(compiled) == repr(reference)
            assert hash(compiled) == hash(reference)

    def test_events_of_the_other_twin_are_unequal_not_an_error(self, twins: Twins) -> None:
        reference, compiled = (twin.Event(data="a") for twin in twins)
        assert reference != compiled
        assert compiled != reference

    def test_the_words_of_a_refused_change_are_alike(self, twins: Twins) -> None:
        def refusal(twin: ModuleType) -> str:
            with pytest.raises(AttributeError) as caught:
                twin.Event().data = "b"
            return str(caught.value).replace(twin.__name__, "levada.sse")

        assert refusal(twins[0]) == refusal(twins[1])

    @pytest.mark.skipif(not hasattr(sys, "set_int_max_str_digits"), reason="this Python has no such limit")
    def test_a_process_with_a_low_digit_limit_reads_retry_all_the_same(self, twins: Twins) -> None:
        before = sys.get_int_max_str_digits()
        sys.set_int_max_str_digits(640)
        try:
            outcomes = same(twins, "EventParser", {}, [("feed", (b"retry: " + b"7" * 9_999 + b"\ndata\n\n",))])
        finally:
            sys.set_int_max_str_digits(before)
        assert outcomes[0][0] == "returned"


def same(twins: Twins, cls: str, options: dict[str, Any], calls: Iterable[Call]) -> list[tuple[Any, ...]]:
    """Make the same calls on an instance of each twin; assert that each has the same outcome, and return those."""
    calls = list(calls)
    reference, compiled = (outcomes(getattr(twin, cls)(**options), calls) for twin in twins)
    assert compiled == reference
    return reference


def outcomes(instance: Any, calls: list[Call]) -> list[tuple[Any, ...]]:
    """Return what each call gave, or how it failed, each with the state that it left."""
    return [
        (*call(getattr(instance, method), {}, *arguments), [getattr(instance, name, None) for name in STATE])
        for method, arguments in calls
    ]


def call(function: Callable[..., Any], options: dict[str, Any], *arguments: Any) -> tuple[Any, ...]:
    try:
        result = function(*arguments, **options)
    except Exception as error:  # whatever it is, it must be the same on both
        fields = {name: value for name, value in vars(error).items() if name != "completed"}
        return "raised", type(error), str(error), error.args, fields, values(getattr(error, "completed", ()))
    return "returned", type(result), values(result) if isinstance(result, list) else result


def values(result: Iterable[Any]) -> list[Any]:
    return [item if isinstance(item, bytes) else plain(item) for item in result]
