"""What can go wrong, said once: every error carries a stable code, one line, and a remedy."""

from __future__ import annotations

from typing import ClassVar


class QuantgateError(Exception):
    """A failure with a stable `code`, a one-line `message` and a `remedy` (what to do about it).

    The command line turns it into `{"error": {"code", "message", "remedy"}}` and `exit_code`.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, code: str, message: str, remedy: str) -> None:
        super().__init__(code, message, remedy)
        self.code = code
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}" if self.remedy else self.message

    def as_dict(self) -> dict[str, str]:
        """The error as the command line prints it under `error`."""
        return {"code": self.code, "message": self.message, "remedy": self.remedy}


class BadInputError(QuantgateError):
    """A wrong spec, file, option or source: found before anything is spent, never retried."""

    exit_code: ClassVar[int] = 2


class TransientError(QuantgateError):
    """A failure that another try may cure: the network, an engine that did not start."""
