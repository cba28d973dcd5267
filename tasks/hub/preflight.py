"""What is checked before any GPU time: token, namespace, name, card."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tasks.card.regions import find_regions
from tasks.errors import BadInputError
from tasks.hub.contents import GITATTRIBUTES
from tasks.hub.patience import patiently
from tasks.hub.remote import RepoState, repo_state
from tasks.hub.session import Hub
from tasks.spec import PublishSpec

README = "README.md"


def preflight_hub(spec: PublishSpec, hub: Hub) -> RepoState | None:
    """Check that the release could be published to the Hub; the repository, if there is one.

    Raises:
        BadInputError: no token, a token that may not write, a namespace or name that is not ours,
            a card that could not be kept.
        TransientError: the Hub cannot be asked.
    """
    if hub.token is None:
        raise BadInputError(
            "hub-token-missing",
            "publish.to: `hub` needs a token, and there is none.",
            "Set HF_TOKEN, run `hf auth login`, or name a Prefect Secret block.",
        )
    me = patiently("asking the Hub whose token this is", hub.api.whoami)
    state = repo_state(hub, spec.repo)
    if not spec.pull_request:
        _check_namespace(spec, me)
    if state is None:
        if spec.pull_request:
            raise BadInputError(
                "hub-not-found",
                f"publish.pull_request: there is no repository {spec.repo} to open one on.",
                "Publish without pull_request, or create it first.",
            )
        return None
    write = not spec.pull_request
    patiently(
        f"asking for access to {spec.repo}",
        lambda: hub.api.auth_check(spec.repo, write=write),
    )
    _check_privacy(spec, state)
    _check_card(spec, hub, state)
    return state


def _check_namespace(spec: PublishSpec, me: dict[str, Any]) -> None:
    """Whether the token may write in the namespace, as far as `whoami` tells."""
    namespace = spec.repo.partition("/")[0]
    role = ((me.get("auth") or {}).get("accessToken") or {}).get("role")
    if role == "read":
        raise BadInputError(
            "hub-forbidden",
            "The Hub token can only read.",
            "Make one that can write at https://huggingface.co/settings/tokens.",
        )
    if namespace == me.get("name"):
        return
    for org in me.get("orgs") or []:
        if org.get("name") == namespace and org.get("roleInOrg") != "read":
            return
    raise BadInputError(
        "hub-namespace",
        f"publish.repo: {me.get('name')} cannot write to the namespace `{namespace}`.",
        "Use your own name or an organization in which you may write.",
    )


def _check_privacy(spec: PublishSpec, state: RepoState) -> None:
    if spec.private and not state.private:
        raise BadInputError(
            "hub-public",
            f"publish.private: {spec.repo} is public already.",
            "Publish to another name, or make it private on the Hub first.",
        )


def _check_card(spec: PublishSpec, hub: Hub, state: RepoState) -> None:
    """An existing card must have our regions; a repository without a card must be empty."""
    if README in state.files:
        find_regions(read_card(spec.repo, hub, state), f"{spec.repo}/{README}")
    elif set(state.files) - {GITATTRIBUTES}:
        raise BadInputError(
            "hub-taken",
            f"publish.repo: {spec.repo} is there and is no release of this program.",
            "Choose another name, or give it a card with the marker regions.",
        )


def read_card(repo: str, hub: Hub, state: RepoState) -> bytes:
    """The card at the head, as it is.

    Raises:
        QuantgateError: the Hub cannot be asked.
    """

    def ask() -> bytes:
        with tempfile.TemporaryDirectory(prefix="quantgate-card-") as folder:
            path = hub.api.hf_hub_download(repo, README, revision=state.head, local_dir=folder)
            return Path(path).read_bytes()

    return patiently(f"reading the card of {repo}", ask)
