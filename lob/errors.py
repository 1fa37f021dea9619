"""The errors that a user sees. Each carries one clear line: what is wrong, where, and what to do about it.

`cli` prints that line and exits with the class's `exit_code`; nothing else in the house calls `sys.exit`.
"""


class TapeproofError(Exception):
    """A fault that the user can mend. The message is one line: file (and row), what was found, the remedy.

    Messages quote what files hold: what of it cannot be printed (a newline, a terminal's escape sequence) is shown as an escape, and the
    middle of a line longer than MOST_LINE is left out.
    """

    exit_code = 2

    def __str__(self) -> str:
        line = printable(super().__str__())
        return line if len(line) <= MOST_LINE else f"{line[: MOST_LINE // 2]} … {line[-MOST_LINE // 2 :]}"


MOST_LINE = 2400
"""Characters of a message; the names of all of a run's tables are some hundred."""


def printable(text: str) -> str:
    """`text` with each character that is not printable as Python writes it in a string, like `\\n`, `\\x1b` or `\\u2028`."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def first_line(error: BaseException) -> str:
    """What another library's error says, in one line; its type's name when it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)


class BadInput(TapeproofError):
    """A file, an option or a configuration that cannot be used."""


class NotFound(TapeproofError):
    """Something that was asked for by name does not exist; the message lists what does."""


class StaleCache(TapeproofError):
    """A cache or a store of another version: the message says found, expected and the command that rebuilds it."""


class ForeignCheckpoint(TapeproofError):
    """A checkpoint of another layout, with unknown or missing keys, or with damaged content."""


class DamagedLog(TapeproofError):
    """A run log that cannot be read as what it claims to be. Exit 1: it is a finding, not a usage fault."""

    exit_code = 1


class CheckFailed(TapeproofError):
    """A proof that did not hold."""

    exit_code = 1
