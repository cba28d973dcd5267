"""What the Hub's answers mean, in one clear line each, with nothing secret in it."""

from __future__ import annotations

import re

from tasks.errors import BadInputError, QuantgateError, TransientError

RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same call may succeed."""

_REFUSALS: dict[int, tuple[str, str, str]] = {
    400: ("hub-refused", "the Hub refused the request", "Correct what it names."),
    401: (
        "hub-unauthorized",
        "the Hub does not accept the token, or there is none",
        "Set HF_TOKEN to a valid token, or log in with `hf auth login`.",
    ),
    403: (
        "hub-forbidden",
        "the token has no right to do this",
        "Use a token with write access to the namespace.",
    ),
    404: ("hub-not-found", "the Hub knows no such repository or revision", "Check the name."),
    409: ("hub-conflict", "the Hub says that it exists already", "Choose another name or tag."),
    412: (
        "hub-moved",
        "somebody else committed to the repository meanwhile",
        "Look at that commit, then publish again.",
    ),
    413: ("hub-too-large", "the Hub says that it is too large", "Publish fewer or smaller files."),
}


def status_of(error: BaseException) -> int | None:
    """HTTP status of a Hub error; None when no answer came."""
    seen: BaseException | None = error
    for _ in range(5):
        status = getattr(getattr(seen, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
        seen = seen.__cause__ if seen is not None else None
    # hf_xet reports a refused token as a plain ConnectionError or RuntimeError with the status
    # in its text.
    found = re.search(r"\b(?:status(?: code)?:? ?|HTTP )?(401|403)\b", str(error))
    return int(found[1]) if found and not _is_local(error) else None


def explain(error: BaseException, what: str) -> QuantgateError:
    """One line for an error that the Hub's client raised; `what` says what was being done.

    The client's own message is quoted only where the Hub's server wrote it (`X-Error-Message` or
    the body's `error`), and at most 200 characters of it.
    """
    status = status_of(error)
    said = _said(error)
    if status is not None and status in _REFUSALS:
        code, words, remedy = _REFUSALS[status]
        return BadInputError(code, f"{what}: {words} (HTTP {status}){said}.", remedy)
    if status == 429:
        return TransientError(
            "hub-rate-limited",
            f"{what}: the Hub's rate limit is used up (HTTP 429){said}.",
            "Wait some minutes and run again; it continues where it stopped.",
        )
    if status is not None:
        return TransientError(
            "hub-failed",
            f"{what}: the Hub answered HTTP {status}{said}.",
            "Run again; it continues where it stopped.",
        )
    if _is_local(error):
        return BadInputError("hub-input", f"{what}: {_first_line(error)}.", "Correct it.")
    return TransientError(
        "hub-unreachable",
        f"{what}: no answer from the Hub ({type(error).__name__}).",
        "Check the network and run again; it continues where it stopped.",
    )


def may_retry(error: BaseException) -> bool:
    """Whether the same call may succeed later: no answer at all, a rate limit, a server error."""
    status = status_of(error)
    return status in RETRIED_STATUS if status is not None else not _is_local(error)


def _is_local(error: BaseException) -> bool:
    return isinstance(error, (ValueError, TypeError, KeyError, FileNotFoundError, PermissionError))


def _said(error: BaseException) -> str:
    message = getattr(error, "server_message", None)
    words = " ".join(str(message).split()) if message else ""
    return f": {words[:200].rstrip('.')}" if words else ""


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
