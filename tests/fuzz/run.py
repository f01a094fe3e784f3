"""Fuzz the wire core. `make fuzz` runs all drivers; a finding is printed with the program that shows it.

Exit code 0: nothing found. 1: a finding. 77: not run, because there is no sanitizer here; the reason is printed.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from random import Random

sys.path[0] = str(Path(__file__).resolve().parents[2])  # run as a script, and yet imported as everywhere

from tests.fuzz import sanitized  # noqa: E402
from tests.fuzz.drivers import Budget, FindingError, Note, coverage, differential, random_programs  # noqa: E402
from tests.fuzz.play import difference  # noqa: E402
from tests.fuzz.programs import Call, Program  # noqa: E402

SKIPPED = 77
DRIVERS = {"differential": differential, "random": random_programs, "narrow": random_programs, "coverage": coverage}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", choices=[*DRIVERS, "all"], default="all")
    parser.add_argument("--seconds", type=float, default=60, help="for each driver; default 60")
    parser.add_argument("--executions", type=int, help="exactly so many instead, however long it takes")
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="play the one program in this file instead")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)  # this is a process of `in_process`
    options = parser.parse_args()
    if options.inside:
        return inside(options)
    if options.replay:
        return in_process("replay", ["--replay", str(options.replay)])
    codes = [0]
    for driver in DRIVERS if options.driver == "all" else [options.driver]:
        seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(4))
        print(f"{driver}, seed {seed}: ", end="", flush=True)
        arguments = ["--driver", driver, "--seconds", str(options.seconds), "--seed", str(seed)]
        if options.executions is not None:
            arguments += ["--executions", str(options.executions)]
        codes.append(in_process(driver, arguments))
    return 1 if 1 in codes else max(codes)


def in_process(driver: str, arguments: list[str]) -> int:
    """Run a driver in a process of its own, which a sanitizer may end; say what it was playing then."""
    environment = None
    if driver != "differential":
        try:
            environment = sanitized.environment()
            if driver == "narrow":
                environment["LEVADA_NO_AVX2"] = "1"
            sanitized.build()
        except sanitized.UnavailableError as reason:
            print(f"skipped: {reason}")
            return SKIPPED
    sys.stdout.flush()
    code = subprocess.run([sys.executable, __file__, "--inside", *arguments], env=environment, check=False).returncode
    if code not in (0, 1) and driver != "replay":
        program = repr(pickle.loads(note_of(driver).read_bytes()))
        kept = note_of(driver).with_suffix(f".{os.getpid()}.txt")
        kept.write_text(program)
        print(f"the process ended with {code}; --replay {os.path.relpath(kept)} plays what it was playing:\n{program}")
    return min(abs(code), 1)


def note_of(driver: str) -> Path:
    return sanitized.BUILD / f"{driver}.program"


def inside(options: argparse.Namespace) -> int:
    """Run a driver, or replay a program, in this process."""
    random = Random(options.seed)
    budget = Budget(options.seconds, options.executions)
    try:
        if options.replay:
            print(replay(options.replay))
        else:
            print(DRIVERS[options.driver](budget, random, Note(note_of(options.driver))))
    except FindingError as finding:
        print(finding)
        return 1
    return 0


def replay(path: Path) -> str:
    """Play one program, written as its repr, on the sanitizer build and on the reference."""
    program = eval(path.read_text(), {"Program": Program, "Call": Call})
    core, exact = sanitized.load(), sanitized.exact_maker()
    if found := difference(import_module("levada._hotpath_py"), core, program, exact):
        raise FindingError(found)
    return "nothing found"


if __name__ == "__main__":
    sys.exit(main())
