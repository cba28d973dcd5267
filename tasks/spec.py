"""The release spec: the UI form, the YAML file and the command line are all this one model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tasks.errors import BadInputError
from tasks.form import allow_other_keys, field_title, part_title, without_part_defaults

Fraction = Annotated[float, Field(ge=0, le=1)]
Confidence = Annotated[float, Field(gt=0.5, lt=1)]
Engine = Literal["sglang", "vllm", "reference"]
QFormat = Literal["nvfp4", "nvfp4_mlp_only", "nvfp4_experts_only"]
Words = Annotated[str, Field(pattern=r"\S")]

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
REPO = rf"^{_NAME}/{_NAME}$"
"""namespace/name as the Hub spells it; `..` would lead out of the folder of a folder target."""
TAG = rf"^{_NAME}$"
SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY)$")


class Part(BaseModel):
    """A part of the spec: frozen, and an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        model_title_generator=part_title,
        field_title_generator=field_title,
        json_schema_extra=without_part_defaults,
    )


class Tab(Part):
    """One branch of a union; the form shows each as a tab.

    When the tab is changed, the form sends along what the first tab holds by default: that is
    dropped. Any other key that does not belong here is an error, as everywhere.
    """

    model_config = ConfigDict(json_schema_extra=allow_other_keys)

    @model_validator(mode="before")
    @classmethod
    def _drop_other_tabs_defaults(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {
            name: value
            for name, value in given.items()
            if name in cls.model_fields or not cls._is_other_tabs_default(name, value)
        }

    @classmethod
    def _is_other_tabs_default(cls, name: str, value: Any) -> bool:
        tabs: Sequence[type[Part]] = cls.__mro__[1].__subclasses__()
        fields = [tab.model_fields[name] for tab in tabs if name in tab.model_fields]
        return any(value == _plain(field.default) for field in fields)


def _plain(default: Any) -> Any:
    return list(default) if isinstance(default, tuple) else default


class OfSource(Tab):
    """Where the source model is."""


class OfStart(Tab):
    """How the engine comes up."""


class HubSource(OfSource):
    """A source model on the Hugging Face Hub."""

    at: Literal["hub"] = Field(
        default="hub", description="`hub`: correct it when you change the tab"
    )
    repo: str = Field(description="E.g. Qwen/Qwen3.6-35B-A3B", pattern=REPO)
    revision: str = Field(default="main", description="Branch, tag or commit; resolved once a run")


class FolderSource(OfSource):
    """A source model in a local folder."""

    at: Literal["folder"] = Field(
        default="folder", description="`folder`: correct it when you change the tab"
    )
    path: Path = Field(description="Folder with config.json and safetensors files")
    repo: str | None = Field(
        default=None,
        pattern=REPO,
        description="Hub repository that the card names as base model, where there is one",
    )


class CalibrationSpec(Part):
    """The text that calibration runs through the model: a local JSONL file or a Hub data set."""

    file: Path | None = Field(
        default=None,
        description="JSONL: `text`, or `question` and `answer`; wins over dataset",
    )
    dataset: str | None = Field(default=None, description="Hub data set, e.g. abisee/cnn_dailymail")
    dataset_config: str | None = Field(default=None, description="Configuration of the data set")
    dataset_split: str = Field(default="train", description="Split of the data set")
    dataset_column: str = Field(default="text", description="Column that holds the text")
    rows: int = Field(default=512, ge=1, le=65536, description="Rows to run")
    sequence_length: int = Field(default=512, ge=16, le=131072, description="Tokens a row, at most")
    batch_size: int = Field(default=8, ge=1, le=1024, description="Rows a forward pass")
    seed: int = Field(default=0, ge=0, description="Order in which rows are drawn")

    @model_validator(mode="after")
    def _one_origin(self) -> CalibrationSpec:
        if self.file is None and self.dataset is None:
            raise ValueError("give `file` (JSONL) or `dataset` (Hub)")
        return self


class LaunchSpec(Part):
    """How many processes calibrate together; the scales are those of one."""

    processes: int = Field(
        default=1, ge=1, le=64, description="Processes on each node, one a GPU; 1: no torchrun"
    )
    nodes: int = Field(default=1, ge=1, le=1024, description="Nodes that calibrate together")
    address: str | None = Field(
        default=None,
        description="host:port of the first node, where the run is and the others join",
        pattern=r"^[\w.-]+:\d{1,5}$",
    )
    shard: Literal["replicate", "fsdp2"] = Field(
        default="replicate",
        description="replicate: each process holds the model; fsdp2: each holds a part of it",
    )

    @model_validator(mode="after")
    def _address_for_nodes(self) -> LaunchSpec:
        if self.nodes > 1 and self.address is None:
            raise ValueError("several nodes need the first one's `address` (host:port)")
        return self


class QuantizeSpec(Part):
    """Source -> NVFP4 checkpoint, with NVIDIA ModelOpt."""

    qformat: QFormat = Field(default="nvfp4", description="Which linears become NVFP4 (W4A4)")
    kv_cache: Literal["fp8", "none"] = Field(
        default="fp8", description="fp8: calibrated K and V scales; none: BF16 cache"
    )
    calibration: CalibrationSpec
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="Where to calibrate")
    launch: LaunchSpec = LaunchSpec()
    exclude: tuple[str, ...] = Field(
        default=(), description="More modules to leave BF16 (wildcards), beyond vision and router"
    )


class DraftSpec(Part):
    """The MTP/NEXTN draft head, which the export loses."""

    precision: Literal["nvfp4", "bf16", "none"] = Field(
        default="nvfp4",
        description="nvfp4: requantized; bf16: carried through; none: left out",
    )
    scales: Literal["heuristic", "calibrated"] = Field(
        default="heuristic",
        description="heuristic: data-free, KV scales borrowed; calibrated: measured on the text",
    )


class ImageSpec(Part):
    """The serving image: an SGLang base plus source patches."""

    base: str = Field(description="Base image tag; resolved to a digest by the engine")
    platform: Literal["linux/arm64", "linux/amd64"] = Field(
        default="linux/arm64", description="What the built image must be"
    )
    push_to: str | None = Field(default=None, description="registry/name to push to; unset: local")


class SpeculationSpec(Part):
    """How the draft head is used when serving."""

    algorithm: Literal["NEXTN", "none"] = Field(default="NEXTN", description="none: no speculation")
    num_steps: int = Field(default=2, ge=1, le=16, description="Draft steps a verification")
    topk: int = Field(default=1, ge=1, le=16, description="Branches a draft step")
    draft_tokens: int = Field(
        default=3,
        ge=2,
        le=64,
        validate_default=True,
        description="Tokens a verification, the verified one included; num_steps + 1 with topk 1",
    )

    @field_validator("draft_tokens")
    @classmethod
    def _one_branch(cls, draft_tokens: int, info: ValidationInfo) -> int:
        """With one branch SGLang sets num_steps + 1, whatever it is told."""
        wanted = info.data.get("num_steps", 0) + 1
        if info.data.get("topk") == 1 and draft_tokens != wanted:
            raise ValueError(f"{wanted - 1} draft steps and topk 1 make {wanted} tokens")
        return draft_tokens


class ContainerStart(OfStart):
    """Start the serving image with the container engine."""

    how: Literal["container"] = Field(
        default="container", description="`container`: correct it when you change the tab"
    )
    image: str | None = Field(default=None, description="Image to start; unset: the one built")
    gpus: Literal["all", "none"] = Field(default="all", description="GPUs to request")
    memory_gib: float | None = Field(default=None, gt=0, description="Memory limit, GiB")
    shm_gib: float = Field(default=8, gt=0, description="Shared memory, GiB")
    python: str | None = Field(
        default=None, description="Interpreter inside the image; unset: python3"
    )
    mounts: dict[str, str] = Field(
        default_factory=dict,
        description="More read-only mounts: folder in the container -> folder here",
    )
    command: tuple[str, ...] = Field(
        default=(), description="Instead of the engine's own command line, as for a process"
    )


class ProcessStart(OfStart):
    """Start the engine as a process on this machine."""

    how: Literal["process"] = Field(
        default="process", description="`process`: correct it when you change the tab"
    )
    python: str | None = Field(
        default=None,
        description="Interpreter that has the engine; unset: this one",
    )
    command: tuple[str, ...] = Field(
        default=(),
        description="Instead of the engine's own command line, one word an entry; {python},"
        " {checkpoint}, {port}, {model_name} and {context_length} are filled in",
    )


class UrlStart(OfStart):
    """Use an engine that already runs; it is never started or stopped."""

    how: Literal["url"] = Field(
        default="url", description="`url`: correct it when you change the tab"
    )
    url: str = Field(description="Base URL, e.g. http://127.0.0.1:30000", pattern=r"^https?://")
    log: Path | None = Field(default=None, description="Its log file; without it no release")


class ServeSpec(Part):
    """The engine on which all gates are measured."""

    engine: Engine = Field(default="sglang", description="reference: the embedded CPU/CUDA engine")
    start: Annotated[ProcessStart | ContainerStart | UrlStart, Field(discriminator="how")] = Field(
        default=ProcessStart(), description="How the engine comes up"
    )
    model_name: str = Field(default="release", description="Name under which the model is served")
    port: int = Field(default=0, ge=0, le=65535, description="Port on loopback; 0: a free one")
    context_length: int = Field(default=32768, ge=256, description="Tokens a request, at most")
    speculation: SpeculationSpec = SpeculationSpec()
    flags: tuple[str, ...] = Field(default=(), description="More engine flags, one word an entry")
    env: dict[str, str] = Field(default_factory=dict, description="Environment; never a token")
    ready_timeout: float = Field(default=1800, gt=0, description="Seconds until it must be ready")

    @field_validator("env")
    @classmethod
    def _holds_no_secret(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            if SECRET.search(name.upper()) or value.startswith("hf_"):
                raise ValueError(f"{name} looks like a secret, and the spec is published")
        return env


class AuditGate(Part):
    """Files only: structure, coverage, values, metadata."""

    against_source: bool = Field(default=True, description="Compare decoded weights with source")
    may_change: tuple[str, ...] = Field(
        default=(),
        description="Metadata that may differ from the source: file names, or keys such as"
        " config.json:text_config.max_position_embeddings; wildcards allowed",
    )


class SmokeGate(Part):
    """Does it load, speak, stop, and speculate?"""

    prompts: Path | None = Field(default=None, description="Known-answer JSONL; unset: shipped")
    min_known: Fraction = Field(default=0.75, description="Share of known answers to get right")
    max_tokens: int = Field(default=2048, ge=1, description="Tokens an answer, at most")
    require_log: bool = Field(default=True, description="INVALID when there is no load log to read")


class Gsm8kGate(Part):
    """Answer accuracy on grade-school math."""

    data: Path | None = Field(
        default=None,
        description="JSONL in GSM8K's form; unset: openai/gsm8k from the Hub",
    )
    limit: int | None = Field(default=None, ge=1, description="First N problems; unset: all")
    min_accuracy: Fraction = Field(default=0.95, description="Accuracy that the bound must reach")
    rule: Literal["wilson", "point", "non-inferior"] = Field(
        default="wilson",
        description="wilson: one-sided bounds decide; point: the estimate does; non-inferior: the"
        " paired difference to the baseline does",
    )
    baseline: str | None = Field(
        default=None,
        description="Folder of another GSM8K gate's records, or base URL of another server, to be"
        " paired with",
    )
    margin: Fraction = Field(
        default=0.01, description="Accuracy that non-inferior lets be lost against the baseline"
    )
    confidence: Confidence = Field(default=0.95, description="One-sided confidence of the bound")
    max_lost: Fraction = Field(default=0.01, description="Lost requests over which it is INVALID")
    max_cut_off: Fraction = Field(default=0.01, description="Cut-off answers, likewise")
    concurrency: int = Field(default=64, ge=1, le=4096, description="Requests under way at once")
    max_tokens: int = Field(default=16384, ge=1, description="Tokens an answer, at most")
    timeout: float = Field(default=900, gt=0, description="Seconds a request, at most")
    temperature: float | None = Field(
        default=None, ge=0, description="Unset: the checkpoint's generation config"
    )
    top_p: float | None = Field(default=None, gt=0, le=1, description="Unset: as temperature")
    seed: int = Field(default=0, ge=0, description="Sampling seed")
    thinking: Literal["default", "on", "off"] = Field(
        default="default", description="Chat template's thinking switch"
    )
    prompt: str = Field(
        default="{question}\nPlease reason step by step, and put your final answer"
        " within \\boxed{{}}.",
        description="User message; {question} stands for the problem",
    )

    @field_validator("prompt")
    @classmethod
    def _asks_the_question(cls, prompt: str) -> str:
        marks = ("first problem", "second problem")
        try:
            asked = [prompt.format(question=mark) for mark in marks]
        except (LookupError, ValueError, AttributeError) as error:
            raise ValueError("only {question} may stand in braces; write {{ and }}") from error
        if any(mark not in text for mark, text in zip(marks, asked, strict=True)):
            raise ValueError("holds no {question}")
        return prompt

    @model_validator(mode="after")
    def _has_what_it_compares_with(self) -> Gsm8kGate:
        if self.rule == "non-inferior" and self.baseline is None:
            raise ValueError("rule: `non-inferior` needs a baseline")
        return self


class AcceptanceGate(Part):
    """How many draft tokens the model accepts, under load."""

    min_accept: float | None = Field(
        default=None, ge=1, description="Mean accept length, at least (tokens a verification)"
    )
    max_accept: float | None = Field(
        default=None, ge=1, description="At most; unset: 0.99 x draft_tokens"
    )
    prompts: Path | None = Field(
        default=None, description="JSONL: id, kind, prompt; unset: shipped"
    )
    concurrency: int = Field(default=16, ge=1, le=4096, description="Requests under way at once")
    max_tokens: int = Field(default=512, ge=16, description="Tokens an answer, at most")
    timeout: float = Field(default=900, gt=0, description="Seconds a request, at most")
    min_requests: int = Field(default=200, ge=1, description="Fewer requests are INVALID")
    min_verifications: int = Field(default=2000, ge=1, description="Fewer are INVALID")
    confidence: Confidence = Field(default=0.95, description="Two-sided, of the bootstrap")


class GatesSpec(Part):
    """What a release must show, and on which engines that counts."""

    engines: tuple[Engine, ...] = Field(
        default=("sglang", "vllm"), description="Engines whose measurements count for this release"
    )
    audit: AuditGate = AuditGate()
    smoke: SmokeGate = SmokeGate()
    gsm8k: Gsm8kGate = Gsm8kGate()
    acceptance: AcceptanceGate | None = Field(
        default=AcceptanceGate(), description="Unset for a release without a draft head"
    )


class CardSpec(Part):
    """What the author adds to the model card."""

    title: str | None = Field(default=None, description="Heading; unset: the repository's name")
    notes: str = Field(default="", description="The author's remarks, Markdown, marked as such")
    tags: tuple[str, ...] = Field(default=(), description="More Hub tags")
    recommended_sampling: dict[str, float] = Field(
        default_factory=dict, description="Sampling recommended for use; unset: generation config"
    )
    samples: int = Field(default=2, ge=0, le=8, description="Before/after samples on the card")
    not_measured: dict[str, Words] = Field(
        default_factory=dict, description="What was not measured -> the reason printed on the card"
    )


class ApprovalSpec(Part):
    """A person looks before it goes out."""

    ask: bool = Field(default=False, description="Pause for a person after the gates")
    timeout: float = Field(default=86400, gt=0, description="Seconds until it ends unpublished")


class PublishSpec(Part):
    """Where a release goes once the gates pass."""

    to: Literal["folder", "hub", "nowhere"] = Field(
        default="folder", description="nowhere: a dry run, gates only"
    )
    repo: str = Field(description="namespace/name of the release", pattern=REPO)
    folder: Path = Field(default=Path("published"), description="Parent folder of a folder target")
    private: bool = Field(default=False, description="Keep the Hub repository private")
    pull_request: bool = Field(default=False, description="Open a pull request instead of main")
    tag: str | None = Field(
        default=None, pattern=TAG, description="Tag of the release; unset: the next vN"
    )
    approval: ApprovalSpec = ApprovalSpec()


class ReleaseSpec(Part):
    """One release: from a source model to a publication."""

    name: str = Field(description="Short name", pattern=r"^[a-z0-9][a-z0-9._-]{0,95}$")
    source: Annotated[HubSource | FolderSource, Field(discriminator="at")]
    quantize: QuantizeSpec
    draft: DraftSpec = DraftSpec()
    image: ImageSpec | None = Field(default=None, description="Unset: no image is built")
    serve: ServeSpec = ServeSpec()
    gates: GatesSpec = GatesSpec()
    card: CardSpec = CardSpec()
    publish: PublishSpec

    @model_validator(mode="after")
    def _consistent(self) -> ReleaseSpec:
        if self.serve.engine not in self.gates.engines:
            counted = ", ".join(self.gates.engines)
            raise ValueError(
                f"serve.engine: `{self.serve.engine}` does not count for this release"
                f" (gates.engines: {counted})"
            )
        self._check_draft()
        return self

    def _check_draft(self) -> None:
        speculation, gate = self.serve.speculation, self.gates.acceptance
        if self.draft.precision == "none":
            if speculation.algorithm != "none":
                raise ValueError("serve.speculation.algorithm: must be `none` without a draft head")
            if gate is not None:
                raise ValueError("gates.acceptance: must be unset without a draft head")
            return
        if gate is None:
            return
        low, high = gate.min_accept or 1.0, gate.max_accept or 0.99 * speculation.draft_tokens
        if not low < high <= speculation.draft_tokens:
            raise ValueError(
                f"gates.acceptance: min_accept {low} and max_accept {high} must be in order"
                f" and at most serve.speculation.draft_tokens ({speculation.draft_tokens})"
            )


def load_spec(path: Path, overrides: dict[str, Any] | None = None) -> ReleaseSpec:
    """Read a spec from YAML, with dotted overrides (`{"gates.gsm8k.limit": 100}`) on top.

    Relative paths in a spec are relative to the working directory, as in the Prefect form.

    Raises:
        BadInputError: unreadable file, unknown key, value out of range; names file and field.
    """
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInputError(
            "spec-unreadable", f"{path}: {error.strerror}.", "Give the path of a spec file."
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        line = " ".join(str(error).split())
        raise BadInputError(
            "spec-unreadable", f"{path}: not YAML: {line}.", "Correct it."
        ) from error
    if not isinstance(tree, dict):
        raise BadInputError("spec-unreadable", f"{path}: not a mapping.", "Copy a shipped one.")
    for dotted, value in (overrides or {}).items():
        _set(tree, dotted, value)
    return parse_spec(tree, origin=str(path))


def parse_spec(tree: dict[str, Any], origin: str) -> ReleaseSpec:
    """Validate a spec given as nested dictionaries; `origin` is named in the error.

    Raises:
        BadInputError: one line with every wrong field.
    """
    try:
        return ReleaseSpec.model_validate(tree)
    except ValidationError as error:
        wrong = "; ".join(_describe(item) for item in error.errors())
        raise BadInputError(
            "spec-invalid", f"{origin}: {wrong}.", "Correct the field(s) named; see docs/spec.md."
        ) from error


def _describe(item: Any) -> str:
    field = ".".join(str(part) for part in item["loc"])
    text = str(item["msg"]).removeprefix("Value error, ")
    return f"{field}: {text}" if field else text


def _set(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, leaf = dotted.split(".")
    node = tree
    for name in parents:
        child = node.get(name)
        if child is None:
            child = node[name] = {}
        if not isinstance(child, dict):
            raise BadInputError(
                "spec-invalid",
                f"--set {dotted}: `{name}` is no section.",
                "Name a field.",
            )
        node = child
    node[leaf] = value


def parse_override(text: str) -> tuple[str, Any]:
    """`a.b=value` -> ("a.b", value), the value read as YAML.

    Raises:
        BadInputError: no `=` in it.
    """
    dotted, sign, value = text.partition("=")
    if not sign or not dotted:
        raise BadInputError("bad-set", f"--set {text}: no `=`.", "Write --set section.field=value.")
    try:
        return dotted, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise BadInputError("bad-set", f"--set {text}: not YAML.", "Quote the value.") from error
