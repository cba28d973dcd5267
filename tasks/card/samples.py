"""Answers of an engine to a few fixed prompts, for the card's before and after."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tasks.artifacts import Endpoint
from tasks.errors import TransientError
from tasks.gates.problems import known_answers
from tasks.serve.client import Client
from tasks.serve.dialects import Prompt, Sampling
from tasks.spec import ReleaseSpec


def sample_prompts(spec: ReleaseSpec) -> list[str]:
    """The first questions of the smoke gate, as many as the card shows."""
    return [problem.question for problem in known_answers(spec.gates.smoke.prompts)][
        : spec.card.samples
    ]


def sampling_of(spec: ReleaseSpec) -> Sampling:
    """Greedy, as long as the smoke gate's answers."""
    return Sampling(max_tokens=spec.gates.smoke.max_tokens, temperature=0.0)


def answers(endpoint: Endpoint, prompts: Sequence[str], sampling: Sampling) -> list[str]:
    """Each prompt's answer, reasoning left out.

    Raises:
        TransientError: a request was lost.
    """
    return asyncio.run(_answers(endpoint, prompts, sampling))


async def _answers(endpoint: Endpoint, prompts: Sequence[str], sampling: Sampling) -> list[str]:
    async with Client(endpoint) as client:
        records = [
            await client.ask(
                Prompt(
                    id=f"sample-{number}",
                    messages=({"role": "user", "content": text},),
                    sampling=sampling,
                )
            )
            for number, text in enumerate(prompts)
        ]
    for record in records:
        if record["status"] != "ok":
            raise TransientError(
                "sample-lost", f"A sample was lost: {record['error']}.", "Run again."
            )
    return [str(record["text"]) for record in records]
