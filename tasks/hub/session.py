"""A connection to the Hub: the client, its endpoint and its token, which is never printed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import SecretStr

if TYPE_CHECKING:
    from huggingface_hub import HfApi


@dataclass(frozen=True)
class Hub:
    """The Hub's client with the endpoint that it talks to.

    Attributes:
        api: `huggingface_hub.HfApi`, carrying the token.
        endpoint: base URL without a trailing slash.
        token: what was found, or None; its value leaves only in request headers.
    """

    api: HfApi = field(repr=False)
    endpoint: str
    token: SecretStr | None

    @staticmethod
    def connect(token: SecretStr | None = None, endpoint: str | None = None) -> Hub:
        """Connect with the given token, else the environment's (HF_TOKEN), else the login's.

        Args:
            token: for instance from a Prefect Secret block.
            endpoint: unset: HF_ENDPOINT, else the public Hub.
        """
        from huggingface_hub import HfApi, constants, get_token
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
        found = token.get_secret_value() if token is not None else get_token()
        where = (endpoint or os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
        api = HfApi(endpoint=where, token=found or False, library_name="quantgate")
        return Hub(api=api, endpoint=where, token=SecretStr(found) if found else None)
