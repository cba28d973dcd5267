"""Speculation changes how fast the text comes, never the text; the counters say what happened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tasks.serve.reference.load import Loaded
from tasks.serve.reference.payloads import meta_info
from tasks.serve.reference.request import Request, Sampling
from tasks.serve.reference.sampling import choose, probabilities
from tests.serve.reference.models import answer, load_model, prompts, write_guessable, write_packed

TOKENS = 16


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NVFP4 with an FP8 cache: K and V rounded, the hardest case for equal text."""
    folder = tmp_path_factory.mktemp("guessable")
    return write_packed(write_guessable(folder / "source"), folder / "packed")


@pytest.fixture(scope="module")
def loaded(packed: Path) -> Loaded:
    return load_model(packed)


@pytest.fixture(scope="module")
def questions() -> list[list[int]]:
    return prompts(256)


@pytest.fixture(scope="module")
def plain(loaded: Loaded, questions: list[list[int]]) -> list[Request]:
    return answer(loaded, questions, TOKENS, speculate=False)


@pytest.fixture(scope="module")
def drafted(loaded: Loaded, questions: list[list[int]]) -> list[Request]:
    return answer(loaded, questions, TOKENS, turns=1)


def outputs(requests: Sequence[Request]) -> list[list[int]]:
    return [request.output for request in requests]


def test_speculation_keeps_the_greedy_text_of_256_prompts(
    plain: list[Request], drafted: list[Request]
) -> None:
    assert outputs(drafted) == outputs(plain)
    assert len({tuple(ids) for ids in outputs(plain)}) > 100
    counts = [0, 0, 0]
    for request in drafted:
        for accepted, times in enumerate(request.speculation.histogram):
            counts[accepted] += times
    # Rejections after 0 and 1 accepted drafts and full acceptance were all met, often.
    assert min(counts) > 50
    assert all(request.speculation.verifications == 0 for request in plain)


@pytest.mark.parametrize("steps", [1, 4])
def test_other_numbers_of_steps_keep_it_too(
    loaded: Loaded, questions: list[list[int]], plain: list[Request], steps: int
) -> None:
    some = answer(loaded, questions[:24], TOKENS, steps=steps)
    assert outputs(some) == outputs(plain[:24])
    assert max(len(request.speculation.histogram) for request in some) == steps + 1


def test_alone_or_in_a_crowd_the_text_is_the_same(
    loaded: Loaded, questions: list[list[int]], plain: list[Request]
) -> None:
    for number in (0, 3):
        assert outputs(answer(loaded, [questions[number]], TOKENS)) == [plain[number].output]
    assert outputs(answer(loaded, questions[:24], TOKENS, rows=5)) == outputs(plain[:24])


def test_a_state_that_is_not_taken_back_changes_the_text(
    loaded: Loaded,
    questions: list[list[int]],
    plain: list[Request],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit = type(loaded.main).commit

    def keep_all(self: object, rows: slice, pending: dict, counts: torch.Tensor) -> None:
        tokens = next(iter(pending.values())).keys.shape[2]
        commit(self, rows, pending, counts.clamp(min=min(tokens, 3)) if tokens == 3 else counts)

    monkeypatch.setattr(type(loaded.main), "commit", keep_all)
    assert outputs(answer(loaded, questions[:24], TOKENS)) != outputs(plain[:24])


def recount(request: Request) -> tuple[int, int, int, list[int]]:
    """(verifications, correct, proposed, histogram) from drafts and final ids alone."""
    final = request.output + request.cut
    place, correct, histogram = 1, 0, []
    for step in request.steps:
        accepted = 0
        while accepted < len(step.draft) and step.draft[accepted] == final[place + accepted]:
            accepted += 1
        histogram += [0] * (accepted + 1 - len(histogram))
        histogram[accepted] += 1
        correct += accepted
        place += accepted + 1
    assert place == len(final)
    return len(request.steps), correct, sum(len(s.draft) for s in request.steps), histogram


def test_every_counter_is_what_drafts_and_final_ids_say(drafted: list[Request]) -> None:
    for request in drafted:
        request.finish = "length"
        verifications, correct, proposed, histogram = recount(request)
        meta = meta_info(request, steps=2)
        assert meta["spec_verify_ct"] == verifications
        assert meta["spec_num_correct_drafts"] == correct == meta["spec_accepted_drafts"]
        assert meta["spec_num_proposed_drafts"] == proposed == meta["spec_proposed_drafts"]
        assert meta["spec_correct_drafts_histogram"] == histogram == meta["spec_accept_histogram"]
        assert meta["spec_accept_rate"] == correct / proposed
        assert meta["spec_accept_length"] == meta["completion_tokens"] / verifications
        assert meta["completion_tokens"] == len(request.output) == TOKENS
        assert -1 <= TOKENS - verifications - correct <= 1
    wrong = drafted[0]
    wrong.steps[0].draft[:] = [511, 511]
    before = wrong.speculation.correct
    if wrong.speculation.histogram != [wrong.speculation.verifications]:
        wrong.steps.append(wrong.steps[0])
        with pytest.raises((AssertionError, IndexError)):
            assert recount(wrong)[1] == before


def test_a_draft_head_of_zeros_is_served_and_guesses_little(
    packed: Path, questions: list[list[int]], plain: list[Request], drafted: list[Request]
) -> None:
    broken = load_model(packed)
    assert broken.draft is not None
    for value in broken.draft.head.parameters():
        value.zero_()
    zeros = answer(broken, questions[:24], TOKENS)
    assert outputs(zeros) == outputs(plain[:24])
    rate = sum(r.speculation.correct for r in zeros) / sum(
        r.speculation.verifications for r in zeros
    )
    good = drafted[:24]
    before = sum(r.speculation.correct for r in good) / sum(
        r.speculation.verifications for r in good
    )
    assert rate < 0.1 < before


def test_seeded_sampling_depends_neither_on_speculation_nor_on_the_crowd(
    loaded: Loaded, questions: list[list[int]]
) -> None:
    asked = {"temperature": 0.7, "top_p": 0.9, "top_k": 20}
    some = questions[:24]
    with_draft = answer(loaded, some, 16, turns=3, seed=5, **asked)
    without = answer(loaded, some, 16, speculate=False, seed=5, **asked)
    assert outputs(with_draft) == outputs(without)
    assert sum(request.speculation.correct for request in with_draft) > 0
    other = answer(loaded, some, 16, speculate=False, seed=600, **asked)
    assert outputs(other) != outputs(without)


def test_samples_follow_the_distribution_that_was_asked_for() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -9.0])
    sampling = Sampling(temperature=0.8, top_p=0.95, top_k=4)
    values, ids = probabilities(logits, sampling)
    expected = torch.zeros(5).double()
    expected[ids] = values
    assert expected[4] == 0
    assert expected.sum() == pytest.approx(1)
    counts = torch.zeros(5)
    for seed in range(2000):
        request = Request("r", [1], Sampling(temperature=0.8, top_p=0.95, top_k=4, seed=seed))
        counts[int(choose(logits[None, None], [request]))] += 1
    torch.testing.assert_close(counts.double() / 2000, expected, atol=0.04, rtol=0)
    greedy = Request("g", [1], Sampling(temperature=0))
    assert int(choose(logits[None, None], [greedy])) == 0
