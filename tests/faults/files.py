"""Faults of the folder: shards, index, configs, side files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from tasks.checkpoint.survey import INDEX
from tasks.checkpoint.write import write_index, write_json
from tests.faults.inject import LAYER, Copy, fault, write_arrays


def split(c: Copy) -> None:
    """Make the copy sharded if it is not."""
    if c.indexed:
        return
    names = list(c.files.tensors)
    halves = (names[: len(names) // 2], names[len(names) // 2 :])
    weight_map: dict[str, str] = {}
    arrays = {name: c.files.array(name) for name in names}
    for number, half in enumerate(halves, 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        write_arrays(c.root / file, {name: arrays[name] for name in half})
        weight_map |= dict.fromkeys(half, file)
    (c.root / "model.safetensors").unlink()
    write_index(c.root, weight_map, sum(array.nbytes for array in arrays.values()))
    c.files = type(c.files).open(c.root)


def _edit_map(c: Copy, edit: Any) -> None:
    split(c)
    c.edit_json(INDEX, lambda tree: edit(tree["weight_map"]))


@fault("config-missing")
def config_deleted(c: Copy) -> None:
    (c.root / "config.json").unlink()


@fault("config-unreadable")
def config_cut_off(c: Copy) -> None:
    c.replace("config.json", (c.root / "config.json").read_bytes()[:-40])


@fault("config-unreadable")
def config_is_a_pipe(c: Copy) -> None:
    (c.root / "config.json").unlink()
    os.mkfifo(c.root / "config.json")


@fault("config-invalid")
def config_without_layer_count(c: Copy) -> None:
    c.edit_json("config.json", lambda t: t["text_config"].pop("num_hidden_layers"))


@fault("config-invalid")
def config_of_another_activation(c: Copy) -> None:
    c.edit_json("config.json", lambda t: t["text_config"].update(hidden_act="gelu"))


@fault("config-invalid")
def config_with_a_billion_experts(c: Copy) -> None:
    c.edit_json("config.json", lambda t: t["text_config"].update(num_experts=10**9))


@fault("architecture-unsupported")
def architectures_lost(c: Copy) -> None:
    c.edit_json("config.json", lambda t: t.update(architectures=None))


@fault("architecture-unsupported")
def model_type_of_another_family(c: Copy) -> None:
    c.edit_json("config.json", lambda t: t.update(model_type="llama"))


@fault("quant-config-missing")
def hf_quant_config_deleted(c: Copy) -> None:
    (c.root / "hf_quant_config.json").unlink()


@fault("quant-config-missing")
def quantization_config_deleted(c: Copy) -> None:
    c.edit_json("config.json", lambda t: t.pop("quantization_config"))


@fault("quant-config-unreadable")
def hf_quant_config_is_a_list(c: Copy) -> None:
    c.replace("hf_quant_config.json", b"[]")


@fault("quant-config-unreadable")
def exclude_list_is_text(c: Copy) -> None:
    c.edit_json(
        "hf_quant_config.json", lambda t: t["quantization"].update(exclude_modules="lm_head")
    )


@fault("index-unreadable")
def index_is_garbage(c: Copy) -> None:
    split(c)
    c.replace(INDEX, b"\x00\xff garbage")


@fault("index-unreadable")
def index_without_weight_map(c: Copy) -> None:
    split(c)
    c.edit_json(INDEX, lambda t: t.pop("weight_map"))


@fault("index-missing")
def index_deleted(c: Copy) -> None:
    split(c)
    (c.root / INDEX).unlink()


@fault("index-mismatch")
def index_names_a_tensor_that_is_not_there(c: Copy) -> None:
    _edit_map(c, lambda m: m.update({f"{LAYER}.0.ghost.weight": next(iter(m.values()))}))


@fault("index-mismatch")
def index_forgets_a_tensor(c: Copy) -> None:
    _edit_map(c, lambda m: m.pop(next(iter(m))))


@fault("index-mismatch")
def index_names_the_wrong_shard(c: Copy) -> None:
    def swap(m: dict[str, str]) -> None:
        name = next(iter(m))
        m[name] = next(file for file in m.values() if file != m[name])

    _edit_map(c, swap)


@fault("index-mismatch")
def shard_not_in_the_index(c: Copy) -> None:
    split(c)
    name = c.find(".weight")
    write_arrays(c.root / "extra.safetensors", {"extra.weight": c.files.array(name)})


@fault("total-size")
def total_size_off_by_one(c: Copy) -> None:
    split(c)
    c.edit_json(INDEX, lambda t: t["metadata"].update(total_size=t["metadata"]["total_size"] + 1))


@fault("shard-name")
def shard_name_leads_out(c: Copy) -> None:
    _edit_map(c, lambda m: m.update({next(iter(m)): "../model.safetensors"}))


@fault("shard-name")
def shard_name_is_absolute(c: Copy) -> None:
    _edit_map(c, lambda m: m.update({next(iter(m)): "/etc/passwd.safetensors"}))


@fault("shard-name")
def shard_is_a_link_out(c: Copy) -> None:
    shard = c.root / c.files.shards[0]
    outside = c.root.parent / f"{c.root.name}-outside.safetensors"
    os.link(shard, outside)
    shard.unlink()
    shard.symlink_to(outside)


@fault("shard-missing")
def shard_deleted(c: Copy) -> None:
    split(c)
    (c.root / c.files.shards[-1]).unlink()


@fault("shard-missing")
def all_weights_deleted(c: Copy) -> None:
    for shard in c.files.shards:
        (c.root / shard).unlink()
    (c.root / INDEX).unlink(missing_ok=True)


@fault("shard-truncated")
def shard_cut_off(c: Copy) -> None:
    shard = c.files.shards[-1]
    c.replace(shard, (c.root / shard).read_bytes()[:-1000])


@fault("shard-truncated")
def shard_is_empty(c: Copy) -> None:
    c.replace(c.files.shards[-1], b"")


@fault("shard-trailing")
def shard_has_bytes_behind_it(c: Copy) -> None:
    shard = c.files.shards[-1]
    c.replace(shard, (c.root / shard).read_bytes() + b"\0" * 64)


@fault("shard-unreadable")
def shard_is_a_git_lfs_pointer(c: Copy) -> None:
    c.replace(
        c.files.shards[-1],
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n",
    )


@fault("shard-unreadable")
def shard_header_is_garbage(c: Copy) -> None:
    shard = c.files.shards[-1]
    raw = bytearray((c.root / shard).read_bytes())
    raw[8:40] = b"\xfe" * 32
    c.replace(shard, bytes(raw))


@fault("shard-unreadable")
def shard_tensors_overlap(c: Copy) -> None:
    header = {
        "a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},
        "b": {"dtype": "U8", "shape": [8], "data_offsets": [4, 12]},
    }
    text = json.dumps(header).encode()
    c.replace(c.files.shards[-1], len(text).to_bytes(8, "little") + text + b"\0" * 12)


@fault("tensor-twice")
def tensor_in_two_shards(c: Copy) -> None:
    split(c)
    first, last = c.files.shards[0], c.files.shards[-1]
    name = next(n for n, info in c.files.tensors.items() if info.file == first)
    inside = {n: c.files.array(n) for n, info in c.files.tensors.items() if info.file == last}
    write_arrays(c.root / last, inside | {name: c.files.array(name)})


@fault("tensor-twice")
def header_names_a_tensor_twice(c: Copy) -> None:
    entry = '{"dtype":"U8","shape":[8],"data_offsets":[0,8]}'
    text = f'{{"a":{entry},"a":{entry}}}'.encode()
    c.replace(c.files.shards[-1], len(text).to_bytes(8, "little") + text + b"\0" * 8)


@fault("stray-file")
def unfinished_write_left_behind(c: Copy) -> None:
    (c.root / ".model.safetensors.123.part").write_bytes(b"half")


@fault("stray-file")
def pickled_weights_beside(c: Copy) -> None:
    (c.root / "pytorch_model.bin").write_bytes(b"PK")


@fault("stray-file")
def side_file_is_a_link_out(c: Copy) -> None:
    (c.root / "notes.txt").symlink_to("/etc/hostname")


@fault("config-dtype")
def dtype_is_float16(c: Copy) -> None:
    c.edit_json("config.json", lambda t: t["text_config"].update(dtype="float16"))


@fault("quant-config-mismatch")
def exclude_lists_differ(c: Copy) -> None:
    c.edit_json("config.json", lambda t: t["quantization_config"]["ignore"].remove("lm_head"))


@fault("quant-config-mismatch")
def cache_declared_in_one_config_only(c: Copy) -> None:
    c.edit_json("config.json", lambda t: t["quantization_config"].pop("kv_cache_scheme"))


@fault("quant-algo")
def algorithm_is_fp8(c: Copy) -> None:
    c.edit_json("hf_quant_config.json", lambda t: t["quantization"].update(quant_algo="FP8"))


@fault("quant-algo")
def group_size_is_32(c: Copy) -> None:
    c.edit_json("hf_quant_config.json", lambda t: t["quantization"].update(group_size=32))


@fault("sidecar-unreadable")
def tokenizer_cut_off(c: Copy) -> None:
    c.replace("tokenizer.json", (c.root / "tokenizer.json").read_bytes()[:500])


@fault("sidecar-unreadable")
def template_cut_off(c: Copy) -> None:
    if (c.root / "chat_template.jinja").exists():
        c.replace("chat_template.jinja", b"{% for message in messages %}{{ message.content }")
    else:
        c.edit_json("tokenizer_config.json", lambda t: t.update(chat_template="{% for m in"))


def reword(old: str, new: str) -> Callable[[Copy], None]:
    """Replace words of the template, wherever it is kept."""

    def edit(c: Copy) -> None:
        path = c.root / "chat_template.jinja"
        text = path.read_text(encoding="utf-8")
        assert old in text, "nothing to break"
        c.replace(path.name, text.replace(old, new).encode())

    return edit


for _name, _old, _new in (
    ("template_reads_the_last_turn_only", "in messages", "in messages[-1:]"),
    ("template_drops_the_system_prompt", "in messages", "in messages[1:]"),
    ("template_makes_everyone_a_user", "message.role", "'user'"),
    ("template_changes_the_case", "text(message.content)", "text(message.content)|lower"),
):
    fault("template-loses", name=_name)(reword(_old, _new))


@fault("token-ids")
def end_token_beyond_the_vocabulary(c: Copy) -> None:
    c.edit_json("generation_config.json", lambda t: t.update(eos_token_id=10**7))


@fault("token-ids")
def generation_never_stops(c: Copy) -> None:
    vocabulary = c.json("config.json")["text_config"]["vocab_size"]
    c.edit_json("generation_config.json", lambda t: t.update(eos_token_id=[vocabulary - 1]))


@fault("token-ids")
def tokenizer_larger_than_the_embedding(c: Copy) -> None:
    def grow(tree: dict[str, Any]) -> None:
        tree["added_tokens"].append({"id": 10**7, "content": "<|more|>", "special": True})

    c.edit_json("tokenizer.json", grow)


@fault("metadata-changed", needs_source=True)
def context_length_doubled(c: Copy) -> None:
    def double(tree: dict[str, Any]) -> None:
        tree["text_config"]["max_position_embeddings"] *= 2

    c.edit_json("config.json", double)


@fault("metadata-changed", needs_source=True)
def rope_theta_changed(c: Copy) -> None:
    def change(tree: dict[str, Any]) -> None:
        text = tree["text_config"]
        home = text.get("rope_parameters") or text.get("rope_scaling") or text
        home["rope_theta"] = 123456.0

    c.edit_json("config.json", change)


@fault("metadata-changed", needs_source=True)
def norm_epsilon_dropped(c: Copy) -> None:
    c.edit_json("config.json", lambda t: t["text_config"].pop("rms_norm_eps"))


@fault("metadata-changed", needs_source=True)
def template_changed(c: Copy) -> None:
    if (c.root / "chat_template.jinja").exists():
        text = (c.root / "chat_template.jinja").read_bytes()
        c.replace("chat_template.jinja", text + b"{# another #}Answer briefly.")
    else:
        c.edit_json("tokenizer_config.json", lambda t: t.update(chat_template="Answer briefly."))


@fault("metadata-changed", needs_source=True)
def special_token_changed(c: Copy) -> None:
    c.edit_json("tokenizer_config.json", lambda t: t.update(eos_token="<|other|>"))


@fault("metadata-changed", needs_source=True)
def tokenizer_vocabulary_changed(c: Copy) -> None:
    def swap(tree: dict[str, Any]) -> None:
        vocabulary = tree["model"]["vocab"]
        one, other = sorted(vocabulary)[:2]
        vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]

    c.edit_json("tokenizer.json", swap)


@fault("metadata-changed", needs_source=True)
def temperature_changed(c: Copy) -> None:
    c.edit_json("generation_config.json", lambda t: t.update(temperature=0.123))


@fault("metadata-changed", needs_source=True)
def experts_per_token_changed(c: Copy) -> None:
    c.edit_json("config.json", lambda t: t["text_config"].update(num_experts_per_tok=1))


@fault("sidecar-missing", needs_source=True)
def generation_config_deleted(c: Copy) -> None:
    (c.root / "generation_config.json").unlink()


@fault("sidecar-missing")
def tokenizer_deleted(c: Copy) -> None:
    (c.root / "tokenizer.json").unlink()


@fault("config-invalid")
def config_of_strange_types(c: Copy) -> None:
    tree = c.json("config.json")
    tree["text_config"]["layer_types"] = None
    tree["text_config"]["full_attention_interval"] = {"every": 4}
    write_json(c.root / "config.json", tree)
