"""The group of commands. To add one: a module here that defines `command`, and its name in COMMANDS."""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from typing import Any, Final

import click

from levada._backend import BACKEND, BACKEND_REASON
from levada.cli.exits import Unusable

__all__ = ["levada"]

COMMANDS: Final = ("events", "check", "play", "cut", "serve", "ledger")

_VERSION: Final = f"%(prog)s %(version)s, {BACKEND} ({BACKEND_REASON.replace('%', '%%')})"


class Commands(click.Group):
    """Loads a command's module when it is called, so that no command pays for what another one imports."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"levada.cli.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; output that cannot be written ends it with one line."""
        # A stream that was closed before we began (as daemons do) is None: read nothing from it, write nothing to it.
        if sys.stdin is None:
            sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  # it lives as long as the process
        if sys.stdout is None:
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # so does this one
        if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that cannot show a character gets its escape
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # click ends quietly: the reader has seen enough
        except OSError as error:
            _give_up_stdout()
            raise Unusable(f"cannot write: {error.strerror or error}") from error


def _give_up_stdout() -> None:
    """Let what stdout still holds go nowhere, or Python would try to write it once more at exit, and complain."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="levada", message=_VERSION)
def levada() -> None:
    """Look into recorded streams of model answers, and into the ledger of finished ones."""
