"""The configuration file: what it may say, and how a mistake in it is told."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from levada import UsageError
from levada.gateway import Config, load

WHOLE = """
allowed_hosts = ["chat.example"]
page = false

[limits]
max_turns = 10
send_s = 5

[upstreams.claude]
url = "https://${HOST}/v1/messages"
dialect = "anthropic"
key_env = "CLAUDE_KEY"
max_turns = 4

[upstreams.claude.headers]
anthropic-version = "2023-06-01"

[upstreams.claude.request]
model = "claude-sonnet-4-6"
max_tokens = 4096

[upstreams.claude.timeouts]
idle_s = 20

[upstreams.local]
url = "http://127.0.0.1:8001/v1/chat/completions"
dialect = "openai_chat"
profile = "vllm"
key_env = "LOCAL_KEY"
"""
ENVIRONMENT = {"HOST": "api.example", "CLAUDE_KEY": "k1", "LOCAL_KEY": "k2"}


def read(folder: Path, text: str, environment: dict[str, str] | None = None) -> Config:
    path = folder / "gateway.toml"
    path.write_text(text, "utf-8")
    return load(path, ENVIRONMENT if environment is None else environment)


def test_a_whole_file(tmp_path: Path) -> None:
    config = read(tmp_path, WHOLE)
    claude = config.upstreams["claude"]
    assert claude.url == "https://api.example/v1/messages"
    assert (claude.max_turns, claude.timeouts.idle_s, claude.timeouts.total_s) == (4, 20, 900)
    assert claude.body({"messages": [], "max_tokens": 1}) == {
        "model": "claude-sonnet-4-6", "max_tokens": 1, "messages": [], "stream": True,
    }  # fmt: skip
    assert config.keys == {"claude": ("x-api-key", "k1"), "local": ("authorization", "Bearer k2")}
    assert (config.limits.max_turns, config.limits.send_s, config.limits.heartbeat_s) == (10, 5, 15)
    assert (config.allowed_hosts, config.page) == (("chat.example",), False)
    assert config.upstreams["local"].turn().profile == "vllm"


def test_no_key_is_shown(tmp_path: Path) -> None:
    config = read(tmp_path, WHOLE.replace('"2023-06-01"', '"${CLAUDE_KEY}"'))
    assert repr(config) == "<Config of claude, local>"
    assert "k1" not in repr(config.upstreams)


def test_where_turns_are_kept_says_how_long_they_linger(tmp_path: Path) -> None:
    plain = read(tmp_path, "upstreams = {}").live
    assert (plain.url, plain.lingers_s, plain.keeps_s) == ("memory://", 0, 1)
    kept = read(tmp_path, "upstreams = {}\n[live]\nurl = 'redis://:${CLAUDE_KEY}@h/0'").live
    assert (kept.url, kept.lingers_s, kept.keeps_s) == ("redis://:k1@h/0", 30, 300)
    assert "k1" not in repr(kept)
    both = read(tmp_path, "upstreams = {}\n[live]\nlinger_s = 5\nkeep_s = 7\nmax_entries = 9").live
    assert (both.lingers_s, both.keeps_s, both.options()["max_entries"]) == (5, 7, 9)


def test_a_request_cannot_ask_for_no_stream(tmp_path: Path) -> None:
    assert read(tmp_path, WHOLE).upstreams["local"].body({"stream": False})["stream"] is True


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "missing required field `upstreams`"),
        ("upstreams = 1", "Expected `object`, got `int`"),
        ("[upstreams", "gateway.toml: "),
        ("[upstreams.a]\nurl = 'http://x/'\ndialect = 'nope'", "upstream a: unknown dialect 'nope'"),
        ("[upstreams.a]\nurl = 'http://x/'\ndialect = 'gemini'\nprofile = 'vllm'", "belongs to dialect openai_chat"),
        ("[upstreams.a]\nurl = 'file:///x'\ndialect = 'gemini'", "url must begin with http:// or https://"),
        ("[upstreams.'a/b']\nurl = 'http://x/'\ndialect = 'gemini'", "a name has letters"),
        ("[upstreams.a]\nurl = 'http://x/'\ndialect = 'gemini'\nkey = 'sk-1'", "unknown field `key`"),
        ("[upstreams.a]\nurl = 'http://x/'\ndialect = 'gemini'\nkey_env = 'NOPE'", "variable NOPE is not set"),
        ("[upstreams.a]\nurl = 'http://${NOPE}/'\ndialect = 'gemini'", "variable NOPE is not set"),
        ("[upstreams.a]\nurl = 'http://x/'\ndialect = 'gemini'\nmax_turn_bytes = 0", "max_turn_bytes"),
        ("[upstreams.a]\nurl = 'http://x/'\ndialect = 'gemini'\nmax_turns = 0", "max_turns must be 1 or more"),
        ("[upstreams.a]\nurl = 'http://x/'\ndialect = 'gemini'\nrequest = {x = nan}", "a: request is sent as JSON"),
        ("[upstreams.a]\nurl = 'http://x/'\ndialect = 'gemini'\nrequest = {x = 2026-01-01}", "a: request is sent as"),
        ("[upstreams.a.timeouts]\nidle_s = 0\n[upstreams.a]\nurl = 'http://x/'\ndialect = 'gemini'", "idle_s"),
        ("upstreams = {}\n[limits]\nsend_s = 0", "limits: send_s must be above 0"),
        ("upstreams = {}\n[limits]\nnope = 1", "unknown field `nope`"),
        ("upstreams = {}\n[limits]\ndrain_s = -1", "limits: drain_s must be above 0"),
        ("upstreams = {}\n[live]\nurl = 'http://x'", "live: url must begin with memory://, sqlite:///, redis://"),
        ("upstreams = {}\n[live]\nurl = 'sqlite://live.db'", "live: url must begin with memory://, sqlite:///"),
        ("upstreams = {}\n[live]\nurl = 'sqlite:///'", "live: sqlite:///… names a file"),
        ("upstreams = {}\n[live]\nurl = 'redis://${NOPE}'", "variable NOPE is not set"),
        ("upstreams = {}\n[live]\nlinger_s = -1", "live: linger_s must be 0 to 86400 seconds"),
        ("upstreams = {}\n[live]\nlease_s = 0", "live: lease_s must be 0.1 to 3600 seconds"),
        ("upstreams = {}\n[live]\nowner_header = 'x user'", "live: owner_header must be the name of a header"),
        ("upstreams = {}\n[live]\nnope = 1", "unknown field `nope`"),
        ("upstreams = {}\n[keys]\na = ['authorization', 'k']", "keys do not belong into the file"),
    ],
)
def test_a_mistake_is_told(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=r"gateway\.toml") as caught:
        read(tmp_path, text)
    assert words in str(caught.value)


@pytest.mark.skipif(find_spec("redis") is None, reason="needs the extra redis")
@pytest.mark.parametrize(
    "live",
    [
        "url = 'redis://:s3cret@host:no-port/0'",
        "url = 'redis://:s3cret@host?nope=1'",
        "url = 'redis://:s3cret@host?socket_timeout=soon'",
        "url = 'redis://:s3cret@host/1'\ncluster = true",
        "url = 'redis://:s3cret@host?nope=1'\ncluster = true",
    ],
)
def test_a_url_that_is_no_redis_is_told_without_its_password(tmp_path: Path, live: str) -> None:
    with pytest.raises(UsageError, match=r"gateway\.toml: live: this is no URL of a Redis") as caught:
        read(tmp_path, f"upstreams = {{}}\n[live]\n{live}")
    assert "s3cret" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read: No such file"):
        load(tmp_path / "nope.toml", {})
