"""Answers in the shapes of SGLang 0.5.17, as recorded on a GPU."""

from __future__ import annotations

import time
from importlib import metadata
from typing import TYPE_CHECKING, Any

from tasks.serve.reference.options import Options
from tasks.serve.reference.request import Request
from tasks.serve.reference.totals import Totals

if TYPE_CHECKING:
    from tasks.serve.reference.load import Loaded

WEIGHT_VERSION = {"weight_version": "default"}


def version() -> str:
    """This package's version."""
    try:
        return metadata.version("quantgate")
    except metadata.PackageNotFoundError:
        return "0.1.0"


def meta_info(request: Request, steps: int) -> dict[str, Any]:
    """`choices[0].meta_info`; speculation's counters only when something was verified."""
    info: dict[str, Any] = {
        "id": request.id,
        "finish_reason": _finish(request),
        "prompt_tokens": len(request.prompt),
        **WEIGHT_VERSION,
        "num_retractions": 0,
        "forward_entry_time": request.started,
        "prefill_finished_time": request.prefilled,
        "queue_time": request.started - request.received,
        "reasoning_tokens": 0,
        "completion_tokens": len(request.output),
        "cached_tokens": 0,
        "cached_tokens_details": None,
        "dp_rank": None,
        "e2e_latency": request.ended - request.received,
    }
    spec = request.speculation
    if spec.verifications:
        proposed = spec.verifications * steps
        info |= {
            "spec_accept_rate": spec.correct / proposed,
            "spec_accept_length": len(request.output) / spec.verifications,
            "spec_num_correct_drafts": spec.correct,
            "spec_num_proposed_drafts": proposed,
            "spec_verify_ct": spec.verifications,
            "spec_accepted_drafts": spec.correct,
            "spec_proposed_drafts": proposed,
            "spec_correct_drafts_histogram": list(spec.histogram),
            "spec_accept_histogram": list(spec.histogram),
        }
    decoding = max(1e-9, request.ended - request.prefilled)
    return info | {
        "request_received_ts": request.received,
        "api_server_dispatch_finish_ts": request.received,
        "request_finished_ts": request.ended,
        "decode_throughput": len(request.output) / decoding,
        "response_sent_to_client_ts": time.time(),
    }


def _finish(request: Request) -> dict[str, Any]:
    if request.finish == "length":
        return {"type": "length", "length": len(request.output)}
    return {"type": request.finish, "matched": request.matched}


def usage(request: Request) -> dict[str, Any]:
    """Token counts of a request as it stands."""
    prompt, completion = len(request.prompt), len(request.output)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }


def completion(request: Request, model: str, steps: int, meta: bool) -> dict[str, Any]:
    """A finished chat completion."""
    choice: dict[str, Any] = {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": request.text,
            "reasoning_content": None,
            "tool_calls": None,
        },
        "logprobs": None,
        "finish_reason": request.finish,
        "matched_stop": request.matched,
    }
    if meta:
        choice["meta_info"] = meta_info(request, steps)
    return {
        "id": request.id,
        "object": "chat.completion",
        "created": int(request.received),
        "model": model,
        "choices": [choice],
        "usage": usage(request),
        "metadata": WEIGHT_VERSION,
    }


def chunk(
    request: Request, model: str, delta: dict[str, Any] | None, final: bool = False
) -> dict[str, Any]:
    """One event of a stream; without `delta` it carries the usage only."""
    choice = {
        "index": 0,
        "delta": {"reasoning_content": None, **(delta or {})},
        "logprobs": None,
        "finish_reason": request.finish if final else None,
        "matched_stop": request.matched if final else None,
    }
    event: dict[str, Any] = {
        "id": request.id,
        "object": "chat.completion.chunk",
        "created": int(request.received),
        "model": model,
        "choices": [choice] if delta is not None else [],
    }
    return event if delta is not None else event | {"usage": usage(request)}


def error(message: str, code: int = 400, kind: str = "BadRequestError") -> dict[str, Any]:
    """An error's body."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def models(options: Options, loaded: Loaded, created: int) -> dict[str, Any]:
    """/v1/models."""
    entry = {
        "id": options.served_model_name,
        "object": "model",
        "created": created,
        "owned_by": "quantgate",
        "root": options.served_model_name,
        "parent": None,
        "max_model_len": loaded.context_length,
    }
    return {"object": "list", "data": [entry]}


def model_info(options: Options, loaded: Loaded) -> dict[str, Any]:
    """/model_info."""
    path = str(options.checkpoint)
    return {
        "model_path": path,
        "tokenizer_path": path,
        "is_generation": True,
        "preferred_sampling_params": None,
        **WEIGHT_VERSION,
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": loaded.config.get("model_type"),
        "architectures": loaded.config.get("architectures"),
    }


def server_info(options: Options, loaded: Loaded, totals: Totals) -> dict[str, Any]:
    """/server_info: SGLang's names, this engine's truth.

    Where SGLang 0.5.17 says `auto`, `kv_cache_dtype` says what K and V are rounded to.
    """
    steps = options.num_steps if options.speculates else None
    memory = {
        "weight": round(loaded.weight_bytes / 2**30, 3),
        "kvcache": round(2 * loaded.main.kv.nbytes / 2**30, 3),
    }
    state: dict[str, Any] = {
        "last_gen_throughput": totals.throughput,
        "memory_usage": memory,
        "effective_max_running_requests_per_dp": options.max_batch,
    }
    if totals.accept_length is not None:
        state["avg_spec_accept_length"] = totals.accept_length
    return {
        "model_path": str(options.checkpoint),
        "tokenizer_path": str(options.checkpoint),
        "served_model_name": options.served_model_name,
        "host": options.host,
        "port": options.port,
        "context_length": loaded.context_length,
        "device": options.device.partition(":")[0],
        "device_name": loaded.device_name,
        "dtype": options.dtype,
        "quantization": loaded.quantization,
        "kv_cache_dtype": loaded.kv_dtypes[0],
        "draft_kv_cache_dtype": loaded.kv_dtypes[1] if len(loaded.kv_dtypes) > 1 else None,
        "max_running_requests": options.max_batch,
        "speculative_algorithm": "EAGLE" if steps else None,
        "speculative_num_steps": steps,
        "speculative_eagle_topk": 1 if steps else None,
        "speculative_num_draft_tokens": steps + 1 if steps else None,
        "speculative_draft_model_quantization": loaded.draft_quantization,
        "reasoning_parser": None,
        "sampling_defaults": "model",
        "enable_metrics": True,
        "decode_log_interval": 40,
        "status": "ready",
        "max_req_input_len": loaded.context_length - 1,
        "startup_time": loaded.seconds,
        "internal_states": [state],
        "version": version(),
    }


def metrics(options: Options, loaded: Loaded, totals: Totals) -> str:
    """/metrics in Prometheus text, under SGLang's names."""
    recent = totals.recent_speculation()
    steps = options.num_steps
    rows: list[tuple[str, str, float]] = [
        ("num_running_reqs", "gauge", totals.running),
        ("num_queue_reqs", "gauge", totals.queued),
        ("gen_throughput", "gauge", totals.throughput),
        ("context_len", "gauge", loaded.context_length),
        ("weight_memory_usage_gb", "gauge", loaded.weight_bytes / 2**30),
        ("kv_cache_memory_usage_gb", "gauge", 2 * loaded.main.kv.nbytes / 2**30),
        ("spec_accept_length", "gauge", recent[0] if recent else totals.accept_length or 0.0),
        ("spec_accept_rate", "gauge", recent[1] if recent else _rate(totals, steps)),
        ("spec_num_steps", "gauge", steps),
        ("spec_num_draft_tokens", "gauge", steps + 1 if steps else 0),
        ("prompt_tokens_total", "counter", totals.prompt_tokens),
        ("generation_tokens_total", "counter", totals.generated_tokens),
        ("num_requests_total", "counter", totals.requests),
        ("spec_verify_calls_total", "counter", totals.verifications),
    ]
    name = options.served_model_name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    lines = []
    for what, kind, value in rows:
        lines.append(f"# TYPE sglang:{what} {kind}")
        lines.append(f'sglang:{what}{{engine_type="unified",model_name="{name}"}} {float(value)}')
    lines.append("# TYPE sglang:http_requests_total counter")
    for (endpoint, method), count in sorted(totals.http.items()):
        labels = f'endpoint="{endpoint}",method="{method}"'
        lines.append(f"sglang:http_requests_total{{{labels}}} {float(count)}")
    return "\n".join(lines) + "\n"


def _rate(totals: Totals, steps: int) -> float:
    if not totals.spec_forwards or not steps:
        return 0.0
    return (totals.spec_tokens / totals.spec_forwards - 1) / steps
