"""Call the Hub with bounded patience: waits as long as it asks, with jitter, a few times."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tasks.errors import QuantgateError
from tasks.hub.failures import explain, may_retry

T = TypeVar("T")


@dataclass(frozen=True)
class Patience:
    """How often and how long to wait.

    Attributes:
        tries: calls in all.
        first: seconds before the second call; doubled for each next one.
        longest: seconds at most between two calls, whatever the Hub asks for.
        jitter: share of the wait that is added at random, so that two runs do not march in step.
    """

    tries: int = 5
    first: float = 1.0
    longest: float = 300.0
    jitter: float = 0.25


PATIENCE = Patience()


def patiently(
    what: str,
    call: Callable[[], T],
    patience: Patience | None = None,
    landed: Callable[[], T | None] | None = None,
) -> T:
    """The result of `call()`, tried again after errors that time may cure.

    Args:
        what: what is being done, for the error's line.
        call: the Hub call.
        patience: tries and waits; unset: `PATIENCE`.
        landed: asked after every error, before another try: the result, if the call took effect
            although its answer was lost or its error says otherwise; None if it did not.

    Raises:
        QuantgateError: what the last error means, in one line. The client's own error, which holds
            request headers, is not chained to it.
    """
    patience = patience or PATIENCE
    failure: QuantgateError | None = None
    for attempt in range(patience.tries):
        wait = 0.0
        try:
            return call()
        except QuantgateError as error:
            failure = error
            break
        except Exception as error:
            failure = explain(error, what)
            again = may_retry(error)
            wait = _wait(error, attempt, patience)
        found = landed() if landed is not None else None
        if found is not None:
            return found
        if not again or attempt + 1 == patience.tries:
            break
        time.sleep(wait)
    assert failure is not None
    raise failure


def _wait(error: BaseException, attempt: int, patience: Patience) -> float:
    asked = _asked_seconds(error)
    wait = asked if asked is not None else patience.first * 2**attempt
    return min(patience.longest, wait * (1 + patience.jitter * random.random()))


def _asked_seconds(error: BaseException) -> float | None:
    """Seconds that the Hub asks to wait: `Retry-After`, or the reset time in `ratelimit`.

    `ratelimit: "api";r=0;t=55` says 0 requests left and 55 s to the reset (IETF draft
    ratelimit-headers, as huggingface_hub.utils._http.parse_ratelimit_headers reads it).
    """
    headers = getattr(getattr(error, "response", None), "headers", None)
    if headers is None:
        return None
    after = str(headers.get("retry-after", ""))
    if re.fullmatch(r"\d{1,6}", after):
        return float(after)
    found = re.search(r";\s*r=0;\s*t=(\d{1,6})", str(headers.get("ratelimit", "")))
    return float(found[1]) if found else None
