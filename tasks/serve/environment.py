"""What an engine may see of this process's environment: everything but secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tasks.errors import BadInputError

_SECRET_NAME = re.compile(
    r"(^|_)(TOKENS?|SECRETS?|PASSWORD|PASSWD|CREDENTIALS?|AUTH|API_?KEYS?|ACCESS_?KEY(_ID)?"
    r"|PRIVATE_?KEY|SECRET_?KEY)(_|$)",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(r"\bhf_[A-Za-z0-9]{16,}|://[^/@\s:]+:[^/@\s]+@")
_ALWAYS = {
    "PYTHONUNBUFFERED": "1",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}
_PUBLIC_NAMES = frozenset({"HF_HUB_DISABLE_IMPLICIT_TOKEN"})


def is_secret(name: str, value: str) -> bool:
    """Whether a variable's name or value looks like a token, key or password.

    `HF_TOKEN`, `MY_API_KEY` and a URL with a password in it are; `TOKENIZERS_PARALLELISM` is not.
    """
    if name in _PUBLIC_NAMES:
        return False
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def engine_environment(inherited: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """The engine's environment: `inherited` without secrets, offline, then `asked` on top.

    Raises:
        BadInputError: `asked` (the spec's `serve.env`) holds a secret; it would be published with
            the run's spec.
    """
    for name, value in asked.items():
        if is_secret(name, value):
            raise BadInputError(
                "serve-env-secret",
                f"serve.env: {name} looks like a secret, and a spec is kept with its release.",
                "Remove it; the engine serves local files and needs none.",
            )
    kept = {name: value for name, value in inherited.items() if not is_secret(name, value)}
    return {**kept, **_ALWAYS, **asked}
