"""How a command ends when it does not end well: exit codes and the one line on stderr, the same for every command.

0 done · 1 stopped from outside (the reader of our output went away, or Ctrl-C) · 2 usage, unreadable input, or output
that cannot be written · 4 the stream itself is bad.
"""

from __future__ import annotations

import click

__all__ = ["BadStream", "Unusable"]


class Unusable(click.ClickException):
    """Nothing can be done: the input cannot be read, or the output cannot be written."""

    exit_code = 2


class BadStream(click.ClickException):
    """The bytes are not what their framing promises, or one event is larger than the limit."""

    exit_code = 4
