"""How each engine is asked and how it answers: sglang, vllm and reference, in small parsers.

Written from recorded answers of SGLang 0.5.17 (tests/fixtures/sglang-0.5.17) and from vLLM's
documented OpenAI-compatible server.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Thinking = Literal["default", "on", "off"]


@dataclass(frozen=True)
class Sampling:
    """How an answer is drawn; None leaves a value to the server's own default."""

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    thinking: Thinking = "default"

    def as_dict(self) -> dict[str, Any]:
        """The values by name, None where the server decides."""
        return asdict(self)


@dataclass(frozen=True)
class Prompt:
    """One conversation to send, under an id of its own."""

    id: str
    messages: tuple[dict[str, str], ...]
    sampling: Sampling
    meta: dict[str, Any] = field(default_factory=dict)
    """Kept with the record as it is: kind, right answer, position."""


@dataclass(frozen=True)
class ServerFacts:
    """What a server says about itself; None where it says nothing."""

    version: str | None = None
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    algorithm: str | None = None
    num_steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    average_accept_length: float | None = None
    generation_throughput: float | None = None
    device: str | None = None
    device_name: str | None = None
    model_path: str | None = None
    architectures: tuple[str, ...] = ()
    quantization: str | None = None
    draft_quantization: str | None = None
    reasoning_parser: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The values by name, as they are recorded."""
        return asdict(self)


class MalformedReplyError(Exception):
    """An HTTP 200 whose body is no chat completion."""


class Dialect:
    """One engine's way to be asked. Stateless; `dialect(name)` gives the right one."""

    name = "openai"
    ready_paths: tuple[str, ...] = ("/health",)
    info_paths: tuple[str, ...] = ()
    counters_per_request = False

    def body(self, model: str, prompt: Prompt) -> dict[str, Any]:
        """The JSON body of a chat completion: no stop strings, no stream."""
        sampling = prompt.sampling
        body: dict[str, Any] = {
            "model": model,
            "messages": list(prompt.messages),
            "max_tokens": sampling.max_tokens,
            "stream": False,
        }
        for name in ("temperature", "top_p", "top_k", "min_p", "seed"):
            value = getattr(sampling, name)
            if value is not None:
                body[name] = value
        if sampling.thinking != "default":
            body["chat_template_kwargs"] = {"enable_thinking": sampling.thinking == "on"}
        return body

    def reply(self, payload: Any) -> dict[str, Any]:
        """Flatten a chat completion into a record's fields.

        Raises:
            MalformedReplyError: it is not a chat completion.
        """
        try:
            choice = payload["choices"][0]
            message = choice["message"]
            usage = payload.get("usage") or {}
            counts = ("prompt_tokens", "completion_tokens", "reasoning_tokens")
            return {
                "text": _words("content", message.get("content")),
                "reasoning": _words("reasoning", _reasoning(message)),
                "finish_reason": _of(str, "finish_reason", choice.get("finish_reason")),
                "matched_stop": choice.get("matched_stop"),
                "model": _of(str, "model", payload.get("model")),
                "response_id": _of(str, "id", payload.get("id")),
                **{name: _of(int, name, usage.get(name)) for name in counts},
                "speculation": self.counters(choice),
            }
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise MalformedReplyError(f"not a chat completion: {error!r}") from error

    def counters(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        """The request's own speculation counters; None when the engine gives none."""
        return None

    def facts(self, pages: dict[str, Any]) -> ServerFacts:
        """Read /v1/models (and the engine's own pages) into one value."""
        listed = _models(pages)
        return ServerFacts(
            version=_text((pages.get("/version") or {}).get("version")),
            models=tuple(str(entry.get("id")) for entry in listed),
            max_model_len=_max_len(listed),
        )

    def totals(self, metrics: dict[str, float]) -> dict[str, float] | None:
        """Lifetime totals {drafts, accepted, tokens} of all requests; None when not exported."""
        return None


class SGLang(Dialect):
    """SGLang 0.5.15 and later."""

    name = "sglang"
    ready_paths = ("/health_generate", "/health")
    info_paths = ("/server_info", "/model_info")
    counters_per_request = True

    def body(self, model: str, prompt: Prompt) -> dict[str, Any]:
        """As the base, asking for the request's counters too."""
        return {**super().body(model, prompt), "return_meta_info": True}

    def counters(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        """`meta_info`'s counters; None when nothing was verified or none were sent."""
        meta = choice.get("meta_info") or {}
        if not meta.get("spec_verify_ct"):
            return None
        return {
            "verify_ct": meta["spec_verify_ct"],
            "correct": meta.get("spec_num_correct_drafts"),
            "proposed": meta.get("spec_num_proposed_drafts"),
            "histogram": meta.get("spec_correct_drafts_histogram"),
            "accept_length": meta.get("spec_accept_length"),
            "completion_tokens": meta.get("completion_tokens"),
        }

    def facts(self, pages: dict[str, Any]) -> ServerFacts:
        """`/server_info` for version and speculation, `/v1/models` for names and length."""
        info = pages.get("/server_info") or {}
        model = pages.get("/model_info") or {}
        states = info.get("internal_states") or [{}]
        state = states[0] if isinstance(states[0], dict) else {}
        listed = _models(pages)
        return ServerFacts(
            version=_text(info.get("version")),
            models=tuple(str(entry.get("id")) for entry in listed),
            max_model_len=_max_len(listed),
            algorithm=_text(info.get("speculative_algorithm")),
            num_steps=_whole(info.get("speculative_num_steps")),
            topk=_whole(info.get("speculative_eagle_topk")),
            draft_tokens=_whole(info.get("speculative_num_draft_tokens")),
            average_accept_length=_real(state.get("avg_spec_accept_length")),
            generation_throughput=_real(state.get("last_gen_throughput")),
            device=_text(info.get("device")),
            device_name=_text(info.get("device_name")),
            model_path=_text(info.get("model_path")),
            architectures=tuple(map(str, model.get("architectures") or ())),
            quantization=_text(info.get("quantization")),
            draft_quantization=_text(info.get("speculative_draft_model_quantization")),
            reasoning_parser=_text(info.get("reasoning_parser")),
        )

    def totals(self, metrics: dict[str, float]) -> dict[str, float] | None:
        """Verification calls of all requests; SGLang exports no accepted total."""
        drafts = _sum(metrics, "sglang:spec_verify_calls_total")
        return None if drafts is None else {"drafts": drafts}


class Reference(SGLang):
    """The embedded reference engine, which speaks like SGLang."""

    name = "reference"


class VLLM(Dialect):
    """vLLM's OpenAI-compatible server: counters only as totals in /metrics."""

    name = "vllm"
    info_paths = ("/version",)

    def totals(self, metrics: dict[str, float]) -> dict[str, float] | None:
        """Drafts (one a verification), accepted tokens, and accepted per position."""
        drafts = _sum(metrics, "vllm:spec_decode_num_drafts_total")
        accepted = _sum(metrics, "vllm:spec_decode_num_accepted_tokens_total")
        if drafts is None or accepted is None:
            return None
        found = {"drafts": drafts, "accepted": accepted}
        proposed = _sum(metrics, "vllm:spec_decode_num_draft_tokens_total")
        if proposed is not None:
            found["proposed"] = proposed
        for key, value in metrics.items():
            name, _, labels = key.partition("{")
            if name == "vllm:spec_decode_num_accepted_tokens_per_pos_total":
                position = labels.partition('position="')[2].partition('"')[0]
                found[f"position_{position}"] = found.get(f"position_{position}", 0.0) + value
        return found


_DIALECTS: dict[str, Dialect] = {d.name: d for d in (SGLang(), Reference(), VLLM())}


def dialect(engine: str) -> Dialect:
    """The dialect of an engine by name (`sglang`, `vllm`, `reference`)."""
    return _DIALECTS[engine]


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus text -> {'name{labels}': value}; comments and unreadable lines are left out."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        key, _, value = line.rpartition(" ")
        if key and not line.startswith("#"):
            try:
                found[key] = float(value)
            except ValueError:
                continue
    return found


def _sum(metrics: dict[str, float], name: str) -> float | None:
    values = [v for key, v in metrics.items() if key.partition("{")[0] == name]
    return sum(values) if values else None


def _reasoning(message: dict[str, Any]) -> Any:
    first = message.get("reasoning_content")
    return first if first is not None else message.get("reasoning")


def _of(kind: type, name: str, value: Any) -> Any:
    """A value of the kind that a chat completion has there, or None."""
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise TypeError(f"{name} is {value!r:.40}")
    return value


def _words(name: str, value: Any) -> str:
    """A text that UTF-8 can hold: half a surrogate pair becomes U+FFFD, as in cut-off bytes."""
    text = _of(str, name, value) or ""
    return str(text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _models(pages: dict[str, Any]) -> list[dict[str, Any]]:
    listed = (pages.get("/v1/models") or {}).get("data") or []
    return [entry for entry in listed if isinstance(entry, dict)]


def _max_len(listed: list[dict[str, Any]]) -> int | None:
    return _whole(listed[0].get("max_model_len")) if listed else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _real(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
