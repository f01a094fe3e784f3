# cython: language_level=3, embedsignature=True, embedsignature.format=clinic, binding=False
# cython: freethreading_compatible=False
"""The compiled twin of the hot path. `src/levada/_hotpath_py.py` is the reference: read that one to learn the rules.

Both give equal results, raise equal errors and keep equal state; `tests/test_parity.py` holds them to it. A rule
changed there is changed here in the same commit.

How this file keeps memory safe:
- `chunk` is exact `bytes`, held by the caller for the whole call, so pointers into it stay good.
- No Python code of anybody else runs between the first and the last use of such a pointer: no callbacks, no hooks, and
  types are checked before.
- A `Buffer` is written only through `buffer_append`, which grows it first.

The docstring of a class begins with its constructor's signature and the marker that CPython looks for, unindented; that
is how `inspect.signature` reads it, and why its first line is long.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.string cimport memchr, memcmp, memcpy, memmove

import codecs
import json
import re
from json.decoder import scanstring

from levada._wire import Comment, Remainder, Stray
from levada.errors import EventTooLarge, MalformedPayload, UsageError

ctypedef const unsigned char* Bytes

cdef Py_ssize_t DEFAULT_LIMIT = 64 * 1024 * 1024
cdef Py_ssize_t LARGEST_LIMIT = 0x7FFFFFFFFFFFFFFF
cdef Py_ssize_t MAX_RETRY_DIGITS = 10_000
cdef Py_ssize_t INT_DIGITS = 600  # int() never refuses so few, whatever the process-wide limit
cdef object SURROGATE = re.compile("[\ud800-\udfff]")
cdef str MESSAGE = "message"
cdef str USE_FEED_TEXT = "; use feed_text for text"

cdef enum:
    LF = 10
    CR = 13
    SPACE = 32
    COLON = 58

# What is handed out: events; all (with comments and strays); or frames (see _feed_frames), with strays.
cdef enum Mode:
    EVENTS
    ALL
    FRAMES


# What an open line will be, known as early as its first bytes allow.
cdef enum Kind:
    UNDECIDED
    DATA
    EVENT
    ID
    RETRY
    COMMENT
    STRAY


cdef bytes as_bytes(object chunk, str method, str hint):
    """Return `chunk` as exact bytes. Anything but exact bytes is copied, so that nobody can change it under us."""
    if type(chunk) is bytes:
        return <bytes>chunk
    if isinstance(chunk, (bytes, bytearray, memoryview)):
        return memoryview(chunk).tobytes()
    raise TypeError(f"{method}() takes bytes, bytearray or memoryview, not {type(chunk).__name__}{hint}")


cdef Py_ssize_t checked_limit(object value, str option) except -1:
    if type(value) is not int or not 1 <= value <= LARGEST_LIMIT:
        shown = int_text(value) if type(value) is int else repr(value)
        raise UsageError(f"{option} must be an int from 1 to {LARGEST_LIMIT}, not {shown:.100}")
    return value


cdef object to_int(bytes digits):
    """Return the exact value of up to MAX_RETRY_DIGITS ASCII digits, in pieces that int() accepts."""
    cdef object value = 0
    cdef object size  # a Python int: a C one would make 10 ** size a double
    cdef Py_ssize_t start
    for start in range(0, len(digits), INT_DIGITS):
        piece = digits[start:start + INT_DIGITS]
        size = len(piece)
        value = value * 10**size + int(piece)
    return value


cdef extern from "_utf8.h":
    void levada_utf8_init()
    object levada_utf8_decode(Bytes begin, Py_ssize_t size)

levada_utf8_init()


cdef object int_text(object number):
    """Return text that reads back as this number: hexadecimal for one of more digits than str() may be allowed."""
    return str(number) if number.bit_length() <= 2_000 else hex(number)


cdef inline str to_text(Bytes begin, Py_ssize_t size):
    return <str>levada_utf8_decode(begin, size)


# Under AddressSanitizer what lies behind the bytes of a Buffer is out of bounds, spare room too; else this is nothing.
cdef extern from *:
    """
    #ifdef __SANITIZE_ADDRESS__
    #include <sanitizer/asan_interface.h>
    #define BUFFER_SEAL(b) __asan_poison_memory_region((b)->begin + (b)->size, (b)->room - (b)->size)
    #define BUFFER_UNSEAL(b) __asan_unpoison_memory_region((b)->begin, (b)->room)
    #else
    #define BUFFER_SEAL(b) ((void)0)
    #define BUFFER_UNSEAL(b) ((void)0)
    #endif
    """
    void BUFFER_SEAL(Buffer* buffer) noexcept
    void BUFFER_UNSEAL(Buffer* buffer) noexcept


# A growing buffer of bytes that its owner frees.
cdef struct Buffer:
    unsigned char* begin
    Py_ssize_t size
    Py_ssize_t room


cdef int buffer_append(Buffer* buffer, Bytes begin, Py_ssize_t size) except -1:
    """Append. Grows by half, so that appending stays linear in all; `begin` must not point into the buffer."""
    cdef Py_ssize_t room
    cdef unsigned char* grown
    if buffer.size + size > buffer.room:
        room = buffer.size + size
        room += room >> 1
        if room < 256:
            room = 256
        grown = <unsigned char*>PyMem_Realloc(buffer.begin, room)
        if grown is NULL:
            raise MemoryError()
        buffer.begin = grown
        buffer.room = room
    BUFFER_UNSEAL(buffer)
    memcpy(buffer.begin + buffer.size, begin, size)
    buffer.size += size
    BUFFER_SEAL(buffer)
    return 0


cdef inline void buffer_clear(Buffer* buffer) noexcept:
    """Empty. A large buffer is given back, so that an idle parser stays small."""
    buffer.size = 0
    if buffer.room > 1024:
        PyMem_Free(buffer.begin)
        buffer.begin = NULL
        buffer.room = 0
    BUFFER_SEAL(buffer)


cdef inline void buffer_free(Buffer* buffer) noexcept:
    PyMem_Free(buffer.begin)
    buffer.begin = NULL
    buffer.size = buffer.room = 0


cdef class Utf8Decoder:
    """Utf8Decoder(errors='replace')\n--\n\nBytes to text, cut anywhere: a character comes out with the chunk that brings its last byte.

    `errors`: "replace" makes each maximal malformed part one U+FFFD; "strict" raises UnicodeDecodeError, and the
    decoder is spent until `reset()`. A byte order mark is kept. Source: Encoding Standard, UTF-8 decoder.
    """

    cdef str _errors
    cdef bytes _pending
    cdef tuple _spent

    def __init__(self, errors="replace"):
        if errors != "replace" and errors != "strict":
            raise UsageError(f"errors must be 'replace' or 'strict', not {errors!r:.100}")
        self._errors = "strict" if errors == "strict" else "replace"  # a str of another class is not `str` here
        self._pending = b""
        self._spent = None

    @property
    def pending(self):
        """The 0 to 3 bytes of a character whose rest has not come."""
        return self._pending

    def decode(self, chunk, final=False):
        """Return the text that `chunk` completes; with `final`, also what is left, as malformed.

        Raises UnicodeDecodeError under errors="strict", TypeError for anything but bytes, bytearray, memoryview.
        """
        cdef bytes data = as_bytes(chunk, "decode", "")
        cdef bint last = bool(final)
        if self._spent is not None:
            raise UnicodeDecodeError(*self._spent)
        if self._pending:
            data = self._pending + data
        try:
            text, used = codecs.utf_8_decode(data, self._errors, last)
        except UnicodeDecodeError as error:
            self._spent, self._pending = error.args, b""
            raise
        self._pending = data[used:]
        return text

    def reset(self):
        """Forget everything, an error too: the next chunk begins a new stream."""
        self._pending, self._spent = b"", None


@cython.final
@cython.no_gc
@cython.freelist(256)  # Cython leaves it out in free-threaded builds
cdef class Event:
    """Event(event='message', data='', id='', retry=None)\n--\n\nOne dispatched event: type, data, the last event ID in force, and this block's own `retry` in ms (else None).

    Equal by value on both backends, hashable, picklable, and not to be changed.
    """

    # no_gc: str and int cannot be part of a cycle
    cdef str event
    cdef str data
    cdef str id
    cdef object retry

    def __init__(self, event="message", data="", id="", retry=None):
        for name, value in (("event", event), ("data", data), ("id", id)):
            if type(value) is not str:
                raise TypeError(f"{name} must be str, not {type(value).__name__}")
        if retry is not None and type(retry) is not int:
            raise TypeError(f"retry must be int or None, not {type(retry).__name__}")
        self.event = event
        self.data = data
        self.id = id
        self.retry = retry

    def json(self):
        """Return `data` read as JSON. Raises json.JSONDecodeError where it is not."""
        return json.loads(self.data)

    def __setattr__(self, name, value):
        raise AttributeError(f"attribute {name!r} of 'levada.sse.Event' objects is not writable")

    def __delattr__(self, name):
        raise AttributeError(f"attribute {name!r} of 'levada.sse.Event' objects is not writable")

    def __eq__(self, other):
        if type(other) is not Event:
            return NotImplemented
        cdef Event that = <Event>other
        return (
            self.data == that.data and self.event == that.event and self.id == that.id and self.retry == that.retry
        )

    def __hash__(self):
        return hash((self.event, self.data, self.id, self.retry))

    def __repr__(self):
        retry = None if self.retry is None else int_text(self.retry)
        return f"Event(event={self.event!r}, data={self.data!r}, id={self.id!r}, retry={retry})"

    def __reduce__(self):
        from levada._hotpath_py import _event_from_pickle

        return _event_from_pickle, (self.event, self.data, self.id, self.retry)


# Cython reads `cdef readonly` fields through a function. As slots, such as a class of Python's own has, the interpreter
# reads them by itself, at a fifth of the cost: the offset is all it needs. A field is never NULL: Cython makes it None.
cdef extern from *:
    """
    #include <stddef.h>
    #include <structmember.h>

    static PyMemberDef levada_event_members[] = {
        {"event", T_OBJECT_EX, 0, READONLY, "event: str"},
        {"data", T_OBJECT_EX, 0, READONLY, "data: str"},
        {"id", T_OBJECT_EX, 0, READONLY, "id: str"},
        {"retry", T_OBJECT_EX, 0, READONLY, "retry: int | None"},
    };

    static int levada_add_members(PyTypeObject *type, PyMemberDef *members, int count)
    {
        for (int i = 0; i < count; i++) {
            PyObject *member = PyDescr_NewMember(type, &members[i]);
            if (member == NULL || PyDict_SetItemString(type->tp_dict, members[i].name, member) < 0) {
                Py_XDECREF(member);
                return -1;
            }
            Py_DECREF(member);
        }
        PyType_Modified(type);
        return 0;
    }

    #define LEVADA_OFFSET(object, field) ((const char *)&(object)->field - (const char *)(object))
    #define levada_add_event_members(sample)                                   \
        (levada_event_members[0].offset = LEVADA_OFFSET(sample, event),        \
         levada_event_members[1].offset = LEVADA_OFFSET(sample, data),         \
         levada_event_members[2].offset = LEVADA_OFFSET(sample, id),           \
         levada_event_members[3].offset = LEVADA_OFFSET(sample, retry),        \
         levada_add_members(Py_TYPE((PyObject *)sample), levada_event_members, 4))
    """
    int levada_add_event_members(Event sample) except -1

levada_add_event_members(Event())


cdef inline Kind kind_of(Bytes line, Py_ssize_t size) noexcept:
    """Say what a complete, non-empty line is."""
    cdef unsigned char first = line[0]
    if first == 100:  # d
        if size >= 4 and memcmp(line, b"data", 4) == 0 and (size == 4 or line[4] == COLON):
            return DATA
    elif first == 101:  # e
        if size >= 5 and memcmp(line, b"event", 5) == 0 and (size == 5 or line[5] == COLON):
            return EVENT
    elif first == 105:  # i
        if size >= 2 and line[1] == 100 and (size == 2 or line[2] == COLON):
            return ID
    elif first == COLON:
        return COMMENT
    elif first == 114:  # r
        if size >= 5 and memcmp(line, b"retry", 5) == 0 and (size == 5 or line[5] == COLON):
            return RETRY
    return STRAY


cdef Kind kind_of_beginning(Bytes line, Py_ssize_t size) noexcept:
    """Say what a line will be of which only this non-empty beginning has come."""
    if size <= 5 and (
        (size <= 4 and memcmp(line, b"data", size) == 0)
        or memcmp(line, b"event", size) == 0
        or (size <= 2 and memcmp(line, b"id", size) == 0)
        or memcmp(line, b"retry", size) == 0
    ):
        return UNDECIDED
    return kind_of(line, size)


cdef inline Py_ssize_t value_start(Bytes line, Py_ssize_t size, Py_ssize_t name_size) noexcept:
    """Return where the value of a field line begins; `size` where it has no colon."""
    if size == name_size:
        return size
    if size > name_size + 1 and line[name_size + 1] == SPACE:
        return name_size + 2
    return name_size + 1


cdef inline Py_ssize_t name_size_of(Kind kind) noexcept:
    return 4 if kind == DATA else 2 if kind == ID else 5


cdef Py_ssize_t fault(Bytes line, Py_ssize_t size, Kind kind, Py_ssize_t checked) noexcept:
    """Return the index at which an `id` or `retry` line turns into one that is ignored, or -1 where it does not.

    The first `checked` bytes are known to be good.
    """
    cdef Py_ssize_t start, index
    cdef const void* nul
    if kind == ID:
        nul = memchr(line + checked, 0, size - checked)
        return -1 if nul is NULL else <Bytes>nul - line
    if kind == RETRY and size > 5:
        start = value_start(line, size, 5)
        for index in range(max(start, checked), size):
            if index - start >= MAX_RETRY_DIGITS or not 48 <= line[index] <= 57:
                return index
    return -1


cdef inline bint is_held(Bytes line, Py_ssize_t size, Kind kind) noexcept:
    """Say whether a complete line belongs to the open block: a known field with a value that counts."""
    if kind == DATA or kind == EVENT:
        return True
    if kind == COMMENT or kind == STRAY:
        return False
    if kind == RETRY and value_start(line, size, 5) == size:
        return False
    return fault(line, size, kind, 0) < 0


cdef enum:
    PIECES = 16  # joined at this many: each weighs 50 to 90 bytes beside its text
    LONG = 64 * 1024


cdef class TextLog:
    """TextLog()\n--\n\nA growing text that is cheap to append to and cheap to hold: pieces are joined in blocks, these in longer ones.

    A block takes in those before it that are no longer than itself, up to LONG characters: so few are held, and each
    character is moved a bounded number of times.
    """

    cdef list _blocks
    cdef list _pieces
    cdef Py_ssize_t _length

    def __init__(self):
        self._blocks = []
        self._pieces = []
        self._length = 0

    @property
    def length(self):
        """The length of the text, in characters."""
        return self._length

    def append(self, str text not None, /):
        """Append; return the new length."""
        return self.add(text)

    cdef Py_ssize_t add(self, str text) except -1:
        self._pieces.append(text)
        if len(self._pieces) >= PIECES:
            self._join()
        self._length += len(text)
        return self._length

    cdef int _join(self) except -1:
        cdef list blocks = self._blocks
        cdef str block = "".join(self._pieces)
        cdef Py_ssize_t first = len(blocks)
        cdef Py_ssize_t size = len(block)
        while first and len(<str>blocks[first - 1]) <= size and size < LONG:
            first -= 1
            size += len(<str>blocks[first])
        if first < len(blocks):
            block = "".join(blocks[first:] + [block])
            del blocks[first:]
        blocks.append(block)
        self._pieces = []
        return 0

    def text(self):
        """Return the whole text; joined at the first call after an append, and kept."""
        if self._pieces or len(self._blocks) > 1:
            self._blocks = ["".join(self._blocks) + "".join(self._pieces)]
            self._pieces = []
        return self._blocks[0] if self._blocks else ""


cdef enum:
    HOLES = 4  # a stencil has at most this many


@cython.final
cdef class Stencil:
    """Stencil(event, literals, holes, make, channel, choice, block, kind, log)\n--\n\nAn event of type `event` whose data is a JSON document that differs from the next only in its text: literal bytes
    with holes, `literals` one more than `holes`. Holes: "t" (once) the inside of the JSON string that is the text,
    "s" of a string and "n" a number that do not matter, "w" blanks or none. A match makes the delta
    `make(text, channel, choice, block, kind, log, log.append(text))`.
    Whoever makes a stencil vouches that a match means this delta and nothing else: see levada/stencils.py.
    """

    cdef readonly str event
    cdef readonly TextLog log
    cdef tuple _literals  # keeps the bytes alive to which the pointers point
    cdef int _holes
    cdef char _hole[HOLES]
    cdef Bytes _literal[HOLES + 1]
    cdef Py_ssize_t _literal_size[HOLES + 1]
    cdef object _make
    cdef str _channel
    cdef object _choice
    cdef object _block
    cdef object _kind

    def __init__(
        self, str event not None, tuple literals not None, str holes not None, make, str channel not None, choice,
        block, kind, TextLog log not None
    ):
        if self._literals is not None:
            raise TypeError("a Stencil is made once")
        if (
            len(literals) != len(holes) + 1
            or len(holes) > HOLES
            or holes.count("t") != 1
            or not set(holes) <= {"t", "s", "n", "w"}
            or not all(type(literal) is bytes for literal in literals)
        ):
            raise UsageError(f"{len(literals)} literals do not fit holes {holes!r}")
        self._literals = literals
        self._holes = len(holes)
        cdef int i
        for i in range(self._holes + 1):
            self._literal[i] = <Bytes>PyBytes_AS_STRING(<bytes>literals[i])
            self._literal_size[i] = len(<bytes>literals[i])
            if i < self._holes:
                self._hole[i] = ord(holes[i])
        self._make, self._channel, self._choice, self._block, self._kind = make, channel, choice, block, kind
        self.event = event
        self.log = log

    def match(self, bytes data not None, /):
        """Return the text where `data` fits, else None; also None where only a full JSON decoder can tell."""
        return self.match_bytes(<Bytes>PyBytes_AS_STRING(data), len(data))

    def delta(self, bytes data not None, /):
        """Return the delta where `data` fits, appended to the log, else None."""
        cdef str text = self.match_bytes(<Bytes>PyBytes_AS_STRING(data), len(data))
        return None if text is None else self.make_delta(text)

    cdef object make_delta(self, str text):
        return self._make(text, self._channel, self._choice, self._block, self._kind, self.log, self.log.add(text))

    cdef str match_bytes(self, Bytes at, Py_ssize_t size):
        cdef Bytes end = at + size
        cdef Bytes begin
        cdef Bytes text_begin = NULL
        cdef Bytes text_end = NULL
        cdef bint escaped = False
        cdef int i
        cdef str text
        # the end is compared first: where the tail differs, as in a finish, nothing else need be read
        i = self._holes
        if size < self._literal_size[i] or memcmp(end - self._literal_size[i], self._literal[i], self._literal_size[i]) != 0:
            return None
        for i in range(self._holes):
            if end - at < self._literal_size[i] or memcmp(at, self._literal[i], self._literal_size[i]) != 0:
                return None
            at += self._literal_size[i]
            begin = at
            if self._hole[i] == 110:  # n
                while at < end and at - begin < 18 and 48 <= at[0] <= 57:
                    at += 1
                if at == begin or (begin[0] == 48 and at - begin > 1):
                    return None
            elif self._hole[i] == 119:  # w
                while at < end and at[0] == 32:
                    at += 1
            else:
                while at < end and at[0] != 34:
                    if at[0] < 32:
                        return None
                    if at[0] == 92:
                        escaped = True
                        at += 1
                        if self._hole[i] != 116 or at == end or at[0] < 32:
                            return None
                    at += 1
                if at >= end:
                    return None
                if self._hole[i] == 116:  # t
                    text_begin = begin
                    text_end = at
        if end - at != self._literal_size[self._holes]:
            return None
        text = to_text(text_begin, text_end - text_begin)
        if "\ufffd" in text:
            return None  # malformed UTF-8, perhaps: that is counted where JSON is read
        if escaped:
            try:
                text, _ = scanstring(text + '"', 0, True)
            except ValueError:
                return None
            if SURROGATE.search(text):
                return None
        return text


# A field line of the open block that came in this chunk, not yet copied. At most this many wait; then all are held.
cdef enum:
    WAITING = 4


# The longest event line whose type is remembered, with its LF.
cdef enum:
    TYPE_LINE = 64


cdef struct Line:
    Bytes begin
    Py_ssize_t size
    Kind kind


cdef class EventParser:
    """EventParser(*, max_event_bytes=67108864, last_event_id='')\n--\n\nAn event stream, cut anywhere, to events. One parser belongs to one stream.

    `max_event_bytes` bounds what is held for one event: the values of the open block, one byte for the end of each of
    its lines, and the open line. `last_event_id`: the ID in force before the first byte, for a stream that is resumed.
    Source: WHATWG HTML, 9.2.5 and 9.2.6, read 2026-11-30.
    """

    cdef Py_ssize_t _limit
    cdef str _last_event_id
    cdef object _retry
    cdef Py_ssize_t _ignored_lines
    # where we are
    cdef Py_ssize_t _offset  # bytes of the stream before this chunk
    cdef int _bom  # how many bytes of a byte order mark have come; -1 once that is decided
    cdef bint _skip_lf  # the last chunk ended in CR: an LF that comes first belongs to it
    cdef bint _busy
    cdef tuple _spent
    cdef object _closed
    cdef list _stencils  # only while a chunk is taken
    # the open line
    cdef Buffer _line
    cdef Py_ssize_t _line_size  # of what came of it, also of what is not held
    cdef Py_ssize_t _line_begun  # in bytes of the stream
    cdef Kind _kind
    cdef bint _dropping  # its end is awaited, its bytes are not held
    # the open block
    cdef Buffer _held  # its field lines from former chunks, joined by LF
    cdef Py_ssize_t _values  # the bytes of their values, and one for each line's end
    cdef Py_ssize_t _begun  # where its first field line began, in bytes of the stream; -1: not begun
    cdef object _retry_of_block
    cdef Line _waiting[WAITING]  # its field lines of this chunk
    cdef int _waiting_lines
    # the event type last read, so that a stream of few types makes few strings
    cdef str _type
    cdef unsigned char _type_line[TYPE_LINE]  # as it is mostly written: `event: `, the type, LF
    cdef Py_ssize_t _type_line_size

    def __cinit__(self):
        self._line.begin = self._held.begin = NULL
        self._line.size = self._line.room = self._held.size = self._held.room = 0

    def __init__(self, *, max_event_bytes=DEFAULT_LIMIT, last_event_id=""):
        if self._busy:
            raise UsageError("the parser is already taking a chunk; one parser belongs to one stream")
        self._limit = checked_limit(max_event_bytes, "max_event_bytes")
        if type(last_event_id) is not str:
            raise TypeError(f"last_event_id must be str, not {type(last_event_id).__name__}")
        buffer_free(&self._line)
        buffer_free(&self._held)
        self._last_event_id = last_event_id
        self._retry = self._retry_of_block = None
        self._ignored_lines = 0
        self._offset = 0
        self._bom = 0
        self._skip_lf = False
        self._spent = self._closed = self._stencils = None
        self._line_size = self._line_begun = 0
        self._kind = UNDECIDED
        self._dropping = False
        self._values = 0
        self._begun = -1
        self._waiting_lines = 0
        self._type = MESSAGE
        memcpy(self._type_line, b"event: message\n", 15)
        self._type_line_size = 15

    def __dealloc__(self):
        buffer_free(&self._line)
        buffer_free(&self._held)

    @property
    def last_event_id(self):
        """The last event ID: changed at a blank line only, also at the end of a block without data."""
        return self._last_event_id

    @property
    def retry(self):
        """The reconnection time last set, in ms, in force as soon as its line is complete; None before."""
        return self._retry

    @property
    def ignored_lines(self):
        """How many complete lines were neither blank, nor comments, nor fields that count."""
        return self._ignored_lines

    def feed(self, chunk, /):
        """Take the next bytes of the stream; return the events they complete, oldest first, or [].

        `chunk` is bytes, bytearray or memoryview, cut anywhere, also inside a character or between CR and LF.
        Malformed UTF-8 becomes U+FFFD. Raises EventTooLarge above `max_event_bytes`, with the events of this chunk
        in `.completed`; the parser is spent then. Raises UsageError after `close()`.
        Source: WHATWG HTML, 9.2.5 and 9.2.6, read 2026-11-30.
        """
        if type(chunk) is not bytes:
            chunk = as_bytes(chunk, "feed", USE_FEED_TEXT)
        return self._take(<bytes>chunk, EVENTS)

    def feed_all(self, chunk, /):
        """Do as `feed` does, and return comments and lines that are no known field as well, in wire order.

        Such a line counts towards `max_event_bytes` while it is open. One whose beginning `feed` took is not given.
        """
        return self._take(as_bytes(chunk, "feed_all", USE_FEED_TEXT), ALL)

    def feed_text(self, text, /):
        """Do as `feed` does with text, for transports that decode by themselves; a lone surrogate becomes U+FFFD."""
        if not isinstance(text, str):
            raise TypeError(f"feed_text() takes str, not {type(text).__name__}; use feed for bytes")
        return self._take(str.encode(text, "utf-8", "surrogatepass"), EVENTS)

    def _feed_frames(self, chunk, list stencils, /):
        """Do as `feed` does for a turn, and return frames in wire order.

        A frame is the delta of the first stencil that fits, a pair of event type and data as bytes, or a Stray. Once
        a frame is no delta, stencils rest until the next chunk: the turn must see that frame first.
        """
        for item in stencils:
            if type(item) is not Stencil:
                raise TypeError(f"a stencil must be Stencil, not {type(item).__name__}")
        self._stencils = stencils if stencils else None
        try:
            return self._take(as_bytes(chunk, "feed", USE_FEED_TEXT), FRAMES)
        finally:
            self._stencils = None

    def _close_frames(self):
        """Do as `close` does, and return the unterminated line too where it is no known field."""
        cdef Kind kind
        stray = None
        if self._line_size and not self._dropping and self._line.size:
            kind = kind_of(self._line.begin, self._line.size)
            if kind == STRAY:
                stray = Stray(to_text(self._line.begin, self._line.size))
        return self.close(), stray

    def close(self):
        """End the stream; return what no blank line closed: discarded, as the standard says, but reported.

        A second call returns an equal Remainder. Raises EventTooLarge where the parser is spent.
        """
        if self._busy:
            raise UsageError("the parser is already taking a chunk; one parser belongs to one stream")
        if self._spent is not None:
            raise EventTooLarge(*self._spent)
        if self._closed is None:
            self._closed = self._remainder()
            buffer_free(&self._line)
            buffer_free(&self._held)
        return self._closed

    # What follows is private, in the order in which a chunk meets it.

    @cython.final
    cdef list _take(self, bytes chunk, Mode mode):
        if self._busy:  # from a finalizer, or from another thread: pointers are in use
            raise UsageError("the parser is already taking a chunk; one parser belongs to one stream")
        if self._spent is not None:
            raise EventTooLarge(*self._spent)
        if self._closed is not None:
            raise UsageError("the stream was closed; make a new EventParser for the next one")
        cdef list out = []
        cdef Bytes begin = <Bytes>PyBytes_AS_STRING(chunk)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(chunk)
        if self._kind == DATA and self._is_inside_line(begin, size):
            self._offset += size
            self._line_size += size
            buffer_append(&self._line, begin, size)
            return out
        self._busy = True
        try:
            self._take_bytes(begin, size, mode, out)
        finally:  # and no `except`, which would cost every chunk: _too_large does its work
            self._busy = False
            self._waiting_lines = 0  # they point into the chunk
            if self._spent is not None:
                buffer_free(&self._line)
                buffer_free(&self._held)
        return out

    @cython.final
    cdef inline bint _is_inside_line(self, Bytes begin, Py_ssize_t size) noexcept:
        """Say whether a chunk that comes while a data line is open neither ends it nor exceeds the limit.

        Such a fragment need only be appended: a data line is held whatever follows, and where one is open, neither a
        byte order mark nor an LF of a CRLF can come first.
        """
        return (
            self._values + self._line_size + size <= self._limit
            and memchr(begin, LF, size) is NULL
            and memchr(begin, CR, size) is NULL
        )

    @cython.final
    cdef int _take_bytes(self, Bytes base, Py_ssize_t size, Mode mode, list out) except -1:
        """Take a chunk. `base` is its first byte, `offset` the place of `base` in the stream."""
        cdef Bytes at = base
        cdef Bytes end = base + size
        cdef Bytes data
        cdef Bytes line_end
        cdef Bytes next_cr
        cdef Py_ssize_t offset = self._offset
        self._offset += size
        if self._bom >= 0 and at < end:
            at = self._without_bom(at, end, mode, out)
        if self._skip_lf and at < end:
            self._skip_lf = False
            if at[0] == LF:
                at += 1
        if at >= end:
            return 0
        next_cr = <Bytes>memchr(at, CR, end - at)
        if next_cr is NULL:
            next_cr = end
        while at < end:
            if self._line_size == 0:
                if self._begun < 0:
                    # One data line and its blank line, perhaps after the event line of the last type: as most providers
                    # write every block. Nothing need be kept, and one search finds the end of all of it. What counts
                    # towards the limit is less than the block's own size.
                    data = at
                    if (
                        at[0] == 101  # e
                        and next_cr - at > self._type_line_size
                        and memcmp(at, self._type_line, self._type_line_size) == 0
                    ):
                        data = at + self._type_line_size
                    if next_cr - data > 7 and memcmp(data, b"data: ", 6) == 0:
                        line_end = <Bytes>memchr(data + 6, LF, next_cr - data - 7)
                        if line_end is not NULL and line_end[1] == LF and line_end - at <= self._limit:
                            self._dispatch(MESSAGE if data == at else self._type, data + 6, line_end - data - 6, mode, out)
                            at = line_end + 2
                            continue
                elif at[0] == LF:
                    self._blank_line(mode, out)  # the second of two LF, as after nearly every block: no search needed
                    at += 1
                    continue
            # one search for CR serves until that CR is reached; LF is looked for up to it
            line_end = <Bytes>memchr(at, LF, next_cr - at)
            if line_end is NULL:
                line_end = next_cr
                if line_end == end:
                    break
            if self._line_size:
                self._end_open_line(at, line_end - at, mode, out)
            elif line_end == at:
                self._blank_line(mode, out)
            else:
                self._take_line(at, line_end - at, kind_of(at, line_end - at), offset + (at - base), mode, out)
            at = line_end + 1
            if line_end == next_cr:
                if at == end:
                    self._skip_lf = True
                elif at[0] == LF:
                    at += 1
                next_cr = <Bytes>memchr(at, CR, end - at)
                if next_cr is NULL:
                    next_cr = end
        if self._waiting_lines or (self._line_size == 0 and self._line.size):
            self._hold_waiting()
        if at < end:
            if self._line_size == 0:
                self._line_begun = offset + (at - base)
            self._take_rest(at, end - at, mode, out)
        return 0

    @cython.final
    cdef inline int _dispatch(self, str type_, Bytes data, Py_ssize_t size, Mode mode, list out) except -1:
        """Hand out an event of this type and data, with the last event ID in force and the block's own retry."""
        cdef Event event
        if mode == FRAMES:
            out.append(self._frame(type_, data, size))
            return 0
        event = Event.__new__(Event)
        event.event = type_
        event.data = to_text(data, size)
        event.id = self._last_event_id
        event.retry = self._retry_of_block
        out.append(event)
        return 0

    @cython.final
    cdef Bytes _without_bom(self, Bytes at, Bytes end, Mode mode, list out) except NULL:
        """Drop one byte order mark at the start of the stream, in whatever pieces it comes."""
        cdef Bytes bom = b"\xef\xbb\xbf"
        cdef int known = self._bom
        while at < end and self._bom < 3 and at[0] == bom[self._bom]:
            self._bom += 1
            at += 1
        if self._bom == 3:
            self._bom = -1
        elif at < end:
            # it was none: the bytes that looked like it are the beginning of a line
            if self._bom:
                self._line_begun = 0
                self._take_rest(bom, self._bom, mode, out)
            self._bom = -1
        return at

    @cython.final
    cdef int _take_line(
        self, Bytes line, Py_ssize_t size, Kind kind, Py_ssize_t begun, Mode mode, list out
    ) except -1:
        """Take a complete, non-empty line. `line` points into the chunk or into the open line, good until its end."""
        cdef Py_ssize_t start, bad = -1
        if kind >= ID:
            if kind == COMMENT or kind == STRAY:
                if (mode == ALL or (mode == FRAMES and kind == STRAY)) and self._values + size > self._limit:
                    raise self._too_large(begun, out)
                if kind == STRAY:
                    self._ignored_lines += 1
                    if mode != EVENTS:
                        self._stencils = None
                        out.append(Stray(to_text(line, size)))
                elif mode == ALL:
                    start = value_start(line, size, 0)
                    out.append(Comment(to_text(line + start, size - start)))
                return 0
            bad = fault(line, size, kind, 0)
        if self._values + (size if bad < 0 else bad) > self._limit:
            raise self._too_large(begun, out)
        start = value_start(line, size, name_size_of(kind))
        if bad >= 0 or (kind == RETRY and start == size):
            self._ignored_lines += 1
            return 0
        if kind == RETRY:
            self._retry = self._retry_of_block = to_int(line[start:size])
        if self._waiting_lines == WAITING:
            self._hold_waiting()
        self._waiting[self._waiting_lines] = Line(line, size, kind)
        self._waiting_lines += 1
        self._values += size - start + 1
        if self._begun < 0:
            self._begun = begun
        return 0

    @cython.final
    cdef int _end_open_line(self, Bytes rest, Py_ssize_t size, Mode mode, list out) except -1:
        """Take the last bytes of the open line, of which former chunks brought the beginning."""
        cdef Py_ssize_t begun = self._line_begun
        self._line_size = 0
        if self._dropping:
            self._dropping = False
            if self._kind != COMMENT:
                self._ignored_lines += 1
            self._kind = UNDECIDED
            return 0
        if size:
            buffer_append(&self._line, rest, size)
        self._kind = UNDECIDED
        self._take_line(
            self._line.begin, self._line.size, kind_of(self._line.begin, self._line.size), begun, mode, out
        )
        return 0

    @cython.final
    cdef int _hold_waiting(self) except -1:
        """Copy the waiting field lines of the open block, because their chunk ends, or they are many."""
        cdef int i
        for i in range(self._waiting_lines):
            if self._held.size:
                buffer_append(&self._held, b"\n", 1)
            buffer_append(&self._held, self._waiting[i].begin, self._waiting[i].size)
        self._waiting_lines = 0
        if self._line_size == 0:
            buffer_clear(&self._line)  # nothing points into it any more
        return 0

    @cython.final
    cdef str _type_of(self, Bytes begin, Py_ssize_t size):
        if size == 0:
            return MESSAGE
        if size + 8 == self._type_line_size and memcmp(begin, self._type_line + 7, size) == 0:
            return self._type
        cdef str text = to_text(begin, size)
        if size + 8 <= TYPE_LINE:
            memcpy(self._type_line + 7, begin, size)
            self._type_line[size + 7] = LF
            self._type_line_size = size + 8
            self._type = text
        return text

    @cython.final
    cdef int _blank_line(self, Mode mode, list out) except -1:
        """Dispatch the event, if the block has data, and begin a new block."""
        cdef Line* line
        cdef str type_ = MESSAGE
        cdef Bytes data = NULL
        cdef Py_ssize_t start, size = 0
        cdef int i
        if self._begun < 0:
            return 0
        if self._held.size:
            type_ = self._read_held(&size)
            if size >= 0:
                data = self._held.begin
                self._held.size = size
        for i in range(self._waiting_lines):
            line = &self._waiting[i]
            start = value_start(line.begin, line.size, name_size_of(line.kind))
            if line.kind == DATA:
                if data is NULL:
                    data = line.begin + start  # the only one, in nearly every block: read where it is
                    size = line.size - start
                    continue
                # several: join them in the buffer
                if data is not self._held.begin:
                    self._held.size = 0
                    if size:  # the buffer may have no place yet, and memcpy asks for one even to copy nothing
                        buffer_append(&self._held, data, size)
                buffer_append(&self._held, b"\n", 1)
                buffer_append(&self._held, line.begin + start, line.size - start)
                data = self._held.begin
                size = self._held.size
            elif line.kind == EVENT:
                type_ = self._type_of(line.begin + start, line.size - start)
            elif line.kind == ID:
                self._last_event_id = to_text(line.begin + start, line.size - start)
        if data is not NULL:
            self._dispatch(type_, data, size, mode, out)
        buffer_clear(&self._held)
        self._waiting_lines = 0
        self._retry_of_block = None
        self._values = 0
        self._begun = -1
        return 0

    @cython.final
    cdef object _frame(self, str type_, Bytes data, Py_ssize_t size):
        cdef Stencil stencil
        if self._stencils is not None:
            for item in self._stencils:
                stencil = <Stencil>item
                if stencil.event is type_ or stencil.event == type_:
                    text = stencil.match_bytes(data, size)
                    if text is not None:
                        return stencil.make_delta(text)
            self._stencils = None
        return type_, PyBytes_FromStringAndSize(<const char*>data, size)

    @cython.final
    cdef str _read_held(self, Py_ssize_t* size):
        """Return the type of the held block and set the last event ID; its data is then the first `size` bytes held.

        Data values are joined in place: what is written is never longer than what has been read. `size` is -1
        where there is no data line.
        """
        cdef Bytes at = self._held.begin
        cdef Bytes end = at + self._held.size
        cdef Bytes line_end
        cdef unsigned char* write = self._held.begin
        cdef Py_ssize_t start, line_size
        cdef Kind kind
        cdef str type_ = MESSAGE
        cdef bint has_data = False
        while at < end:
            line_end = <Bytes>memchr(at, LF, end - at)
            if line_end is NULL:
                line_end = end
            line_size = line_end - at
            kind = kind_of(at, line_size)
            start = value_start(at, line_size, name_size_of(kind))
            if kind == DATA:
                if has_data:
                    write[0] = LF
                    write += 1
                has_data = True
                memmove(write, at + start, line_size - start)
                write += line_size - start
            elif kind == EVENT:
                type_ = self._type_of(at + start, line_size - start)
            elif kind == ID:
                self._last_event_id = to_text(at + start, line_size - start)
            at = line_end + 1
        size[0] = write - self._held.begin if has_data else -1
        return type_

    @cython.final
    cdef int _take_rest(self, Bytes rest, Py_ssize_t size, Mode mode, list out) except -1:
        """Hold the beginning of a line, or only remember that it is there where nothing of it will be needed."""
        cdef Py_ssize_t known = self._line_size
        cdef Py_ssize_t ignored = -1
        self._line_size += size
        if self._dropping:
            return 0
        if known == 0:
            buffer_clear(&self._line)
            self._kind = kind_of_beginning(rest, size)
        if mode == ALL or (self._kind != COMMENT and (self._kind != STRAY or mode == FRAMES)):
            buffer_append(&self._line, rest, size)
            if self._kind == UNDECIDED and known:
                self._kind = kind_of_beginning(self._line.begin, self._line_size)
        if self._kind == UNDECIDED:
            return 0
        if self._kind == COMMENT:
            if mode != ALL:
                ignored = 0
        elif self._kind == STRAY:
            if mode == EVENTS:
                ignored = 0
        elif self._kind == ID or self._kind == RETRY:
            ignored = fault(self._line.begin, self._line_size, self._kind, known)
        if self._values + (self._line_size if ignored < 0 else ignored) > self._limit:
            raise self._too_large(self._line_begun, out)
        if ignored >= 0:
            buffer_clear(&self._line)
            self._dropping = True
        return 0

    @cython.final
    cdef object _too_large(self, Py_ssize_t line_begun, list out):
        """Return the error that ends the parser; the call that raises it frees what is held."""
        error = EventTooLarge(self._limit, self._limit + 1, self._begun if self._begun >= 0 else line_begun)
        error.completed = tuple(out)
        self._spent = error.args
        return error

    @cython.final
    cdef object _remainder(self):
        cdef list lines = []
        cdef list data = []
        cdef bytes line
        cdef Kind kind
        cdef Bytes begin
        if self._held.size:
            lines = self._held.begin[:self._held.size].split(b"\n")
        if self._line_size and not self._dropping:
            line = self._line.begin[:self._line.size]
            begin = <Bytes>PyBytes_AS_STRING(line)
            kind = kind_of(begin, len(line))
            if is_held(begin, len(line), kind):
                lines.append(line)
        for line in lines:
            begin = <Bytes>PyBytes_AS_STRING(line)
            if kind_of(begin, len(line)) == DATA:
                data.append(line[value_start(begin, len(line), 4):])
        return Remainder(
            b"\n".join(lines),
            b"\n".join(data).decode("utf-8", "replace") if data else None,
            bool(lines) or self._line_size > 0 or self._bom > 0,
        )


# Where in the array the next byte is: before it, after "[", inside an object, after an object, after ",", at its end,
# or inside a byte order mark.
cdef enum Place:
    START
    FIRST
    INSIDE
    AFTER
    NEXT
    END
    MARK


cdef tuple EXPECTED = (
    "expected '[' or '{' where the JSON begins",
    "expected '{' or ']' in the JSON array",
    None,
    "expected ',' or ']' after an object of the JSON array",
    "expected '{' after ',' in the JSON array",
    "expected nothing but white space after the end of the JSON",
    "expected the rest of a byte order mark",
)


cdef class JsonArray:
    """JsonArray(*, max_item_bytes=67108864)\n--\n\nA streamed JSON array of objects, cut anywhere, to the bytes of each object, as soon as its closing brace comes.

    One bare object is accepted in place of the array. Only the framing is read: the brackets of the array, its commas,
    and braces outside strings; what is inside an object is the caller's to decode. A byte order mark is dropped.
    `max_item_bytes` bounds one object. Sources: RFC 8259; Vertex AI Search streamAnswer as in docs/dialects.md.
    """

    cdef Py_ssize_t _limit
    cdef Py_ssize_t _offset  # bytes of the stream before this chunk
    cdef int _bom  # how many bytes of a byte order mark have come
    cdef Place _place
    cdef bint _bare
    cdef object _ended
    cdef object _spent
    # the open object
    cdef Buffer _held
    cdef Py_ssize_t _begun  # in bytes of the stream
    cdef Py_ssize_t _depth
    cdef bint _in_string
    cdef bint _escaped

    def __cinit__(self):
        self._held.begin = NULL
        self._held.size = self._held.room = 0

    def __init__(self, *, max_item_bytes=DEFAULT_LIMIT):
        self._limit = checked_limit(max_item_bytes, "max_item_bytes")
        buffer_free(&self._held)
        self._offset = self._bom = self._begun = self._depth = 0
        self._place = START
        self._bare = self._in_string = self._escaped = False
        self._ended = self._spent = None

    def __dealloc__(self):
        buffer_free(&self._held)

    @property
    def closed(self):
        """Whether the end of the array, or of the bare object, has come."""
        return self._place == END

    def feed(self, chunk, /):
        """Take the next bytes; return the objects they complete, oldest first, or [].

        Raises MalformedPayload where the bytes are no array of objects, and EventTooLarge above `max_item_bytes`, each
        with this chunk's objects in `.completed`; it is spent then. Raises UsageError after `close()`.
        """
        cdef bytes data = as_bytes(chunk, "feed", "")
        if self._spent is not None:
            raise type(self._spent)(*self._spent.args)
        if self._ended is not None:
            raise UsageError("the stream was closed; make a new JsonArray for the next one")
        cdef list out = []
        try:
            self._take(<Bytes>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), out)
        except (EventTooLarge, MalformedPayload) as error:
            self._spent = type(error)(*error.args)
            buffer_free(&self._held)
            error.completed = tuple(out)
            raise
        self._offset += PyBytes_GET_SIZE(data)
        return out

    def close(self):
        """End the stream; return the unfinished object, which is never handed out as a whole one.

        A second call returns an equal Remainder. Raises its error where it is spent.
        """
        if self._spent is not None:
            raise type(self._spent)(*self._spent.args)
        if self._ended is None:
            raw = PyBytes_FromStringAndSize(<const char*>self._held.begin, self._held.size) if self._held.size else b""
            self._ended = Remainder(raw, None, bool(raw))
            buffer_free(&self._held)
        return self._ended

    cdef int _take(self, Bytes base, Py_ssize_t size, list out) except -1:
        cdef Bytes at = base
        cdef Bytes end = base + size
        cdef unsigned char byte
        cdef Bytes bom = b"\xef\xbb\xbf"
        while at < end:
            if self._place == INSIDE:
                at = self._inside(at, end, self._offset + (at - base), out)
                continue
            byte = at[0]
            if byte == 32 or byte == 9 or byte == 10 or byte == 13:
                pass
            elif byte == 123 and (self._place == START or self._place == FIRST or self._place == NEXT):  # {
                self._bare = self._place == START
                self._place = INSIDE
                self._begun = self._offset + (at - base)
                continue
            elif byte == 91 and self._place == START:  # [
                self._place = FIRST
            elif byte == 93 and (self._place == FIRST or self._place == AFTER):  # ]
                self._place = END
            elif byte == 44 and self._place == AFTER:  # ,
                self._place = NEXT
            elif self._place == START and self._offset + (at - base) == 0 and byte == bom[0]:
                self._place = MARK
                self._bom = 1
            elif self._place == MARK and self._offset + (at - base) == self._bom and byte == bom[self._bom]:
                self._bom += 1
                if self._bom == 3:
                    self._place = START
            else:
                raise MalformedPayload(
                    f"{EXPECTED[<int>self._place]}, found byte 0x{byte:02x}", self._offset + (at - base)
                )
            at += 1
        return 0

    cdef Bytes _inside(self, Bytes start, Bytes end, Py_ssize_t offset, list out) except NULL:
        """Follow the open object to its closing brace or the end of the chunk; return where that is.

        `start` and `end` bound what is left of the chunk; `offset` is the place of `start` in the stream.
        """
        cdef Bytes at = start
        cdef unsigned char byte
        cdef bint in_string = self._in_string
        cdef bint escaped = self._escaped
        cdef Py_ssize_t depth = self._depth
        while at < end:
            byte = at[0]
            at += 1
            if in_string:
                if escaped:
                    escaped = False
                elif byte == 34:  # "
                    in_string = False
                elif byte == 92:  # backslash
                    escaped = True
            elif byte == 34:
                in_string = True
            elif byte == 123:  # {
                depth += 1
            elif byte == 125:  # }
                depth -= 1
                if depth == 0:
                    break
        self._in_string = in_string
        self._escaped = escaped
        self._depth = depth
        if offset - self._begun + (at - start) > self._limit:
            raise EventTooLarge(self._limit, self._limit + 1, self._begun, "max_item_bytes")
        if depth or self._held.size:
            buffer_append(&self._held, start, at - start)
        if depth == 0:
            if self._held.size:
                out.append(PyBytes_FromStringAndSize(<const char*>self._held.begin, self._held.size))
                buffer_clear(&self._held)
            else:
                out.append(PyBytes_FromStringAndSize(<const char*>start, at - start))
            self._place = END if self._bare else AFTER
        return at
