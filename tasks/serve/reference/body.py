"""What a chat completion may ask, and what is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tasks.errors import BadInputError
from tasks.serve.reference.request import Sampling


class Message(BaseModel):
    """One turn; more keys are the template's to read."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatBody(BaseModel):
    """The JSON body of /v1/chat/completions. Unknown keys are ignored, as SGLang ignores them."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    return_meta_info: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    n: Literal[1] = 1
    logprobs: Literal[False] | None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1, le=1)] | None = None
    response_format: None = None
    tools: None = None

    def sampling(self, defaults: dict[str, Any], room: int) -> Sampling:
        """The sampling asked for, over the checkpoint's own `defaults`.

        Args:
            room: tokens that still fit the context; the limit when none was asked for.
        """
        values = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0} | defaults
        values |= {name: given for name in values if (given := getattr(self, name)) is not None}
        seed = {} if self.seed is None else {"seed": self.seed}
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return Sampling(
            temperature=float(values["temperature"]),
            top_p=float(values["top_p"]),
            top_k=max(0, int(values["top_k"])),
            min_p=float(values["min_p"]),
            max_tokens=self.max_completion_tokens or self.max_tokens or room,
            stop=tuple(one for one in stop if one),
            stop_ids=frozenset(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos,
            **seed,
        )


def parse_body(content: bytes) -> ChatBody:
    """Read and check a body.

    Raises:
        BadInputError: not JSON, a value out of range, or something this engine does not do.
    """
    try:
        body = ChatBody.model_validate_json(content)
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'body'}: {item['msg']}" for item in error.errors()
        )
        raise BadInputError("body-invalid", f"{wrong}.", "") from error
    if body.stream and body.return_meta_info:
        raise BadInputError(
            "body-invalid", "return_meta_info is not given with stream.", "Set stream to false."
        )
    return body


def check_length(prompt: int, sampling: int | None, context: int) -> None:
    """Refuse what cannot fit.

    Raises:
        BadInputError: the prompt alone, or prompt and asked tokens together, exceed the context.
    """
    if prompt >= context:
        raise BadInputError(
            "prompt-too-long",
            f"The input ({prompt} tokens) does not fit the model's context length"
            f" ({context} tokens).",
            "",
        )
    if sampling is not None and prompt + sampling > context:
        raise BadInputError(
            "prompt-too-long",
            f"{prompt} input tokens and {sampling} asked ones exceed the model's context length"
            f" ({context} tokens).",
            "Ask for fewer.",
        )
