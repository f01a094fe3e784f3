"""The gateway's configuration: a small TOML file, and the environment for what is secret (docs/gateway.md)."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from levada.dialects import dialect_named, profile_named
from levada.errors import UsageError
from levada.io import Timeouts
from levada.live import LiveLog
from levada.turn import Turn

__all__ = ["Config", "Limits", "LiveSettings", "Upstream", "load"]

# How each dialect's provider takes its key, and the field that asks it for a stream.
_KEY_HEADERS: Final = {"anthropic": "x-api-key", "gemini": "x-goog-api-key"}
_STREAM_FLAG: Final = frozenset({"openai_chat", "openai_responses", "anthropic"})

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LIVE_URL: Final = re.compile(r"((memory|redis|rediss|valkey|valkeys|unix)://|sqlite:///)")
_KEPT_HERE: Final = re.compile(r"(memory|sqlite)://")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


# Of the provider's stream. A chat stream spends some 250 bytes on a token, so that this is an answer of 128,000 tokens;
# one turn for a program may take levada's 256 MiB, but here many share a process (docs/gateway.md has the sum).
DEFAULT_TURN_BYTES: Final = 32 * 1024 * 1024


class TimeoutSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The timeouts of a turn (levada.io.Timeouts), in seconds. `first_byte_s` also bounds the wait for the head."""

    first_byte_s: float = 60.0
    first_event_s: float = 120.0
    idle_s: float = 60.0
    stall_s: float = 300.0
    total_s: float = 900.0

    def timeouts(self) -> Timeouts:
        """Return them as `astream_turn` takes them."""
        return Timeouts(**{name: getattr(self, name) for name in self.__struct_fields__})


class Upstream(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A named upstream: one URL that a turn's request is sent to.

    `key_env`: the environment variable that holds the key; `key_header`: how it is sent. `headers`: sent as they are.
    `request`: fields that a request gets where it does not name them, as the model. `title`, `note`, `group`: for the
    page. `demo`: it plays recordings; the page tells it with `asked` which tries are of one question.
    """

    url: str
    dialect: str
    profile: str | None = None
    title: str = ""
    note: str = ""
    group: str = ""
    demo: bool = False
    key_env: str | None = None
    key_header: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    timeouts: TimeoutSettings = TimeoutSettings()
    max_turns: int = 256
    max_turn_bytes: int = DEFAULT_TURN_BYTES

    def __repr__(self) -> str:
        return f"<Upstream {self.dialect}>"  # an address or a header may hold a key

    def turn(self) -> Turn:
        """Return a new turn for an answer of this upstream."""
        return Turn(self.dialect, profile=self.profile, max_turn_bytes=self.max_turn_bytes)

    def body(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is sent for `request`: its own fields, over the defaults, always as a stream."""
        return {**self.request, **request, **({"stream": True} if self.dialect in _STREAM_FLAG else {})}


class Limits(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What bounds one process. Sizes are in bytes, times in seconds.

    `header_s`, `body_s`: for a request's head and body to come. `keep_alive_s`: of a connection without a request.
    `send_s`: a client that takes nothing for so long is dropped. `shutdown_s`: for the open turns to be told.
    `drain_s`: before that, for them to end by themselves, while no turn is begun.
    """

    max_turns: int = 256
    max_connections: int = 1024  # two for each turn, and some for the page; the usual limit of descriptors
    max_body_bytes: int = 1024 * 1024  # a long conversation; images want more
    max_header_bytes: int = 16 * 1024
    header_s: float = 10.0
    body_s: float = 10.0
    keep_alive_s: float = 15.0
    send_s: float = 30.0
    connect_s: float = 10.0
    heartbeat_s: float = 15.0
    interval_s: float = 0.04
    shutdown_s: float = 5.0
    drain_s: float = 0.0


class LiveSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where live turns are kept, and for how long. Times are in seconds.

    `url`: `memory://` is this process's own; `redis://…` makes turns outlive the replica that serves their reader.
    `linger_s`: how long a turn goes on without a reader; 0 closes its upstream at once; None is 0 in memory and 30
    elsewhere. `keep_s`: how long an ended turn can be read; None is 300, or 1 where nothing lingers. `lease_s`: within
    what time a producer that died is noticed; None is 60 in memory, which dies with it, and 5 elsewhere.
    `owner_header`: a header, set by your own proxy, that says whose a turn is. The others: levada.live.LiveLog.open.
    """

    url: str = "memory://"
    linger_s: float | None = None
    keep_s: float | None = None
    lease_s: float | None = None
    patience_s: float | None = None
    max_entries: int = 20_000
    max_bytes: int = 16 * 1024 * 1024
    prefix: str = "levada:live:"
    cluster: bool = False
    owner_header: str | None = None

    def __post_init__(self) -> None:
        if not _LIVE_URL.match(self.url):
            raise UsageError(
                "live: url must begin with memory://, sqlite:///, redis://, rediss://, valkey:// or unix://"
            )
        if not _KEPT_HERE.match(self.url) and find_spec("redis") is None:
            raise UsageError("live: this url needs redis: pip install 'levada[redis]'")
        if self.linger_s is not None and not 0 <= self.linger_s <= 86_400:
            raise UsageError(f"live: linger_s must be 0 to 86400 seconds, not {self.linger_s!r}")
        if self.owner_header is not None and not _HEADER.fullmatch(self.owner_header):
            raise UsageError("live: owner_header must be the name of a header")
        try:
            LiveLog.open(self.url, **self.options())  # connects nothing: only to be told what makes no sense
        except UsageError as error:
            raise UsageError(f"live: {error}") from error

    @property
    def lingers_s(self) -> float:
        """How long a turn goes on without a reader."""
        return self.linger_s if self.linger_s is not None else 0.0 if self._in_memory else 30.0

    @property
    def leases_s(self) -> float:
        """Within what time a producer that died is noticed."""
        # in memory a lease only runs out where the whole process stood still, and that is no death
        return self.lease_s if self.lease_s is not None else 60.0 if self._in_memory else 5.0

    @property
    def _in_memory(self) -> bool:
        return self.url.startswith("memory:")

    @property
    def keeps_s(self) -> float:
        """How long an ended turn can be read."""
        return self.keep_s if self.keep_s is not None else 300.0 if self.lingers_s else 1.0

    def options(self) -> dict[str, Any]:
        """Return the options of LiveLog.open."""
        names = ("patience_s", "max_entries", "max_bytes", "prefix", "cluster")
        return {"lease_s": self.leases_s, "keep_s": self.keeps_s, **{name: getattr(self, name) for name in names}}

    def __repr__(self) -> str:
        return f"<LiveSettings {self.url.partition(':')[0]}>"  # the rest may hold a password


class Config(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole configuration. `allowed_hosts`: names in the Host header that are answered; "*" is any.

    `page`: whether the web page is served.
    """

    upstreams: dict[str, Upstream]
    limits: Limits = Limits()
    live: LiveSettings = LiveSettings()
    allowed_hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")
    page: bool = True
    keys: dict[str, tuple[str, str]] = field(default_factory=dict)  # header and value by upstream; never from the file

    def __repr__(self) -> str:
        return f"<Config of {', '.join(self.upstreams)}>"  # no keys

    def __post_init__(self) -> None:
        for name, upstream in self.upstreams.items():
            if not _NAME.fullmatch(name):
                raise UsageError(f"upstream {name!r:.100}: a name has letters, digits, dots, dashes and underscores")
            try:
                dialect_named(upstream.dialect)
                profile_named(upstream.profile, upstream.dialect)
                upstream.turn()
                upstream.timeouts.timeouts()
            except UsageError as error:
                raise UsageError(f"upstream {name}: {error}") from error
            try:
                json.dumps(upstream.request, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise UsageError(f"upstream {name}: request is sent as JSON, and this is none: {error}") from error
            if not re.match(r"https?://[^/]", upstream.url):
                raise UsageError(f"upstream {name}: url must begin with http:// or https://")
            if upstream.max_turns < 1:
                raise UsageError(f"upstream {name}: max_turns must be 1 or more")
        for name in self.limits.__struct_fields__:
            value = getattr(self.limits, name)
            if not value > 0 and (name != "drain_s" or value != 0):
                raise UsageError(f"limits: {name} must be above 0, not {value!r}")


def load(path: str | Path, environ: Mapping[str, str] = os.environ) -> Config:
    """Read a configuration. Raises UsageError for what makes no sense, and for a variable that is not set.

    `${NAME}` in a url, a header or a request's text is the environment variable NAME.
    """
    try:
        document = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error
    if "keys" in document:
        raise UsageError(f"{path}: keys do not belong into the file: name a variable with key_env")
    try:
        config = msgspec.convert(_filled(document, environ), Config)
        keys = {name: key for name, known in config.upstreams.items() if (key := _key(name, known, environ))}
    except (msgspec.ValidationError, UsageError) as error:
        raise UsageError(f"{path}: {error}") from error
    return msgspec.structs.replace(config, keys=keys)


def _key(name: str, upstream: Upstream, environ: Mapping[str, str]) -> tuple[str, str] | None:
    if upstream.key_env is None:
        return None
    value = environ.get(upstream.key_env, "")
    if not value:
        raise UsageError(f"upstream {name}: the environment variable {upstream.key_env} is not set")
    header = upstream.key_header or _KEY_HEADERS.get(upstream.dialect, "authorization")
    return header, f"Bearer {value}" if header.lower() == "authorization" else value


def _filled(value: Any, environ: Mapping[str, str]) -> Any:
    """Put environment variables in the place of `${NAME}`, in all text of a document."""

    def variable(match: re.Match[str]) -> str:
        if match[1] not in environ:
            raise UsageError(f"the environment variable {match[1]} is not set")
        return environ[match[1]]

    match value:
        case str():
            return _VARIABLE.sub(variable, value)
        case dict():
            return {key: _filled(part, environ) for key, part in value.items()}
        case list():
            return [_filled(part, environ) for part in value]
        case _:
            return value
