"""The contestant on Node: eventsource-parser in a process of its own, which takes commands over pipes.

It parses text, so a decoder of bytes is part of the contest. Two take part: TextDecoder, the standard's own, which
works wherever the parser does, and StringDecoder, which only Node has, and which is quicker on small chunks.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from benchmarks.rivals import Chunks, UnavailableError
from benchmarks.workloads import TurnWorkload, Workload

NODE_PARSER: Final = "eventsource-parser"
DECODERS: Final = MappingProxyType(
    {
        "TextDecoder": (NODE_PARSER, "TextDecoder.decode(chunk, {stream: true})"),
        "StringDecoder": (f"{NODE_PARSER} (StringDecoder)", "StringDecoder.write(chunk)"),
    }
)
_FOLDER: Final = Path(__file__).parent / "node"
WARM_UP_S: Final = 0.5  # V8 compiles what runs often; its speed settles well before this


class NodeParser:
    """eventsource-parser on Node. `decoder`: of DECODERS. `install`: fetch it with npm where it is not there yet.

    `warm_up_s`: how long it reads each stream before its first turn.
    """

    def __init__(self, decoder: str, *, install: bool, warm_up_s: float = WARM_UP_S) -> None:
        self._warm_up_s = warm_up_s
        self.name, decode = DECODERS[decoder]
        self.how = f"createParser({{onEvent}}).feed({decode})"
        node = shutil.which("node")
        if node is None:
            raise UnavailableError("Node is not installed")
        wanted = json.loads((_FOLDER / "package.json").read_text())["dependencies"][NODE_PARSER]
        if _installed() != wanted:
            if not install:
                raise UnavailableError(
                    f"{NODE_PARSER} {wanted} is not installed; `python -m benchmarks` installs it with npm"
                )
            _npm_install()
        runtime = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        self.version = f"{wanted} on Node {runtime}"
        self._workload: Workload | None = None
        self._answer: dict[str, Any] = {}
        self._process = subprocess.Popen(
            [node, "driver.mjs", decoder], cwd=_FOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            self._ask(command="load", stream="", sizes=[])
        except OSError as error:
            self.close()
            raise UnavailableError(str(error)) from None

    def takes(self, workload: Workload) -> bool:
        return not isinstance(workload, TurnWorkload)

    def load(self, workload: Workload, chunks: Chunks) -> None:
        self._workload = workload
        stream = base64.b64encode(b"".join(chunks)).decode()
        self._answer = self._ask(command="load", stream=stream, sizes=[len(chunk) for chunk in chunks])

    def fault(self) -> str | None:
        assert self._workload is not None
        wanted = self._workload.events
        digest = hashlib.sha256(b"".join(f"{event}\n{data}\0".encode() for event, data in wanted)).hexdigest()
        if self._answer["digest"] != digest:
            return f"{self._answer['events']} events for {len(wanted)}, not the same ones (by digest)"
        if self._answer["length"] != sum(len(data.encode("utf-16-le")) // 2 for _, data in wanted):
            return f"{self._answer['length']} UTF-16 units read, a wrong number"
        self.turn(self._warm_up_s)
        return None

    def turn(self, at_least_s: float) -> float:
        return float(self._ask(command="turn", seconds=at_least_s)["seconds"])

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it may have ended already
            self._process.stdin.close()
        self._process.wait(timeout=10)
        self._process.stdout.close()

    def _ask(self, **command: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise OSError("the Node process ended; its message stands above")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _installed() -> str | None:
    manifest = _FOLDER / "node_modules" / NODE_PARSER / "package.json"
    return json.loads(manifest.read_text())["version"] if manifest.exists() else None


def _npm_install() -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise UnavailableError("npm is not installed")
    # The package has no dependencies and its version is exact, so a lock file would only record a registry's address.
    command = [npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
    try:
        done = subprocess.run(command, cwd=_FOLDER, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        raise UnavailableError("npm install took more than 120 s") from None
    if done.returncode:
        raise UnavailableError(f"npm install failed: {done.stderr.strip()[:200]}")
