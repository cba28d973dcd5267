"""Run single functions and classes out of patched sources, without importing SGLang.

Names that a function uses and that are not given stand for mocks, so that only the code under test
is real.
"""

from __future__ import annotations

import ast
import builtins
import functools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

MODELS = "sglang/srt/models"


@functools.lru_cache(maxsize=16)
def tree_of(root: Path, relative: str) -> ast.Module:
    return ast.parse((root / relative).read_bytes())


def run(nodes: list[ast.stmt], **given: Any) -> dict[str, Any]:
    """Execute definitions; every other name that they use is a mock."""
    module = ast.Module(body=nodes, type_ignores=[])
    names = {node.id for node in ast.walk(module) if isinstance(node, ast.Name)}
    scope: dict[str, Any] = {
        name: MagicMock(name=name) for name in names if not hasattr(builtins, name)
    }
    scope.update({"__name__": "isolated", **given})
    code = compile(ast.fix_missing_locations(module), "isolated", "exec", dont_inherit=True)
    exec(code, scope)
    return scope


def without_annotations(function: ast.FunctionDef) -> ast.FunctionDef:
    for item in ast.walk(function):
        if isinstance(item, ast.FunctionDef):
            item.returns = None
            item.decorator_list = []
            for argument in (*item.args.args, *item.args.kwonlyargs):
                argument.annotation = None
    return function


def helpers(tree: ast.Module) -> list[ast.stmt]:
    """What the patches added at top level."""
    return [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("_quantgate")
    ]


def method(tree: ast.Module, owner: str, name: str) -> ast.FunctionDef:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == owner:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == name:
                    return without_annotations(item)
    raise LookupError(f"{owner}.{name}")


def nvfp4_config(root: Path, exclude: list[str]) -> Any:
    """A quant config with this version's own, real rule for excluded layers."""
    tree = tree_of(root, "sglang/srt/layers/quantization/modelopt_quant.py")
    rule = method(tree, "ModelOptQuantConfig", "is_layer_excluded")
    parts: list[ast.stmt] = [
        without_annotations(node)
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == "_compile_exclusion_pattern"
    ]
    real = run([*parts, rule], re=re)["is_layer_excluded"]
    config = SimpleNamespace(
        get_name=lambda: "modelopt_fp4",
        is_checkpoint_nvfp4_serialized=True,
        exclude_modules=exclude,
    )
    config.is_layer_excluded = lambda prefix: real(config, prefix)
    return config


def mtp_choice(root: Path, config: Any) -> Any:
    """What this version's code makes of `config` for its draft head."""
    tree = tree_of(root, f"{MODELS}/qwen3_5_mtp.py")
    chooser = next(
        (
            node
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name == "_mtp_quant_config"
        ),
        None,
    )
    if chooser is None:
        init = method(tree, "Qwen3_5ForCausalLMMTP", "__init__")
        steps = [
            node
            for node in init.body
            if isinstance(node, ast.If) and "quant_config" in ast.unparse(node.test)
        ]
        chooser = ast.parse("def _mtp_quant_config(quant_config): return quant_config").body[0]
        assert isinstance(chooser, ast.FunctionDef)
        chooser.body = [*steps, *chooser.body]
    scope = run([*helpers(tree), chooser], is_npu=lambda: False)
    return scope["_mtp_quant_config"](config)


def attention_choices(root: Path, config: Any) -> list[Any]:
    """What this version's decoder layers pass on as their quant_config."""
    tree = tree_of(root, f"{MODELS}/qwen3_5.py")
    out = []
    for owner in ("Qwen3_5LinearDecoderLayer", "Qwen3_5AttentionDecoderLayer"):
        init = method(tree, owner, "__init__")
        named = [
            node
            for node in init.body
            if isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]).endswith("quant_config")
            and isinstance(node.targets[0], ast.Name)
        ]
        scope = run(list(named), quant_config=config)
        names = [node.targets[0].id for node in named if isinstance(node.targets[0], ast.Name)]
        out.append(scope[names[0]] if names else config)
    return out


class Parameter:
    """A model parameter that remembers what was loaded into it."""

    def __init__(self, name: str, loads: dict[str, Any]) -> None:
        self.name, self.loads = name, loads

    def weight_loader(self, parameter: Any, weight: Any, *place: Any, **more: Any) -> None:
        self.loads[self.name] = weight


def loaded(
    root: Path, file: str, owner: str, parameters: list[str], weights: list[tuple[str, Any]]
) -> dict[str, Any]:
    """Run one class's own load_weights; parameter name -> what was loaded into it."""
    tree = tree_of(root, f"{MODELS}/{file}")
    loads: dict[str, Any] = {}
    table = {name: Parameter(name, loads) for name in parameters}
    model = SimpleNamespace(
        named_parameters=lambda **_: table.items(),
        modules=list,
        config=SimpleNamespace(num_experts=2, tie_word_embeddings=False, text_config=None),
        pp_group=SimpleNamespace(is_last_rank=True),
        enable_shared_expert_fusion=False,
        num_fused_shared_experts=0,
        start_layer=0,
        end_layer=99,
        pooler=None,
        model=SimpleNamespace(layers=[], start_layer=0, end_layer=0),
    )
    experts = MagicMock()
    experts.make_expert_params_mapping.return_value = []
    constants = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith("_MAPPER")
    ]
    if file == "qwen3_5_mtp.py":
        other = tree_of(root, f"{MODELS}/qwen3_5.py")
        constants += [
            node
            for node in other.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith("_MAPPER")
        ]
    scope = run(
        [*constants, *helpers(tree), method(tree, owner, "load_weights")],
        WeightsMapper=Mapper,
        FusedMoE=experts,
        get_layer_id=lambda name: (
            int(found[1]) if (found := re.search(r"layers\.(\d+)", name)) else None
        ),
        _use_aiter=False,
        JointSchemaPooler=dict,
    )
    scope["load_weights"](model, weights)
    return loads


class Mapper:
    """SGLang's WeightsMapper, as far as substrings go."""

    def __init__(self, orig_to_new_substr: dict[str, str]) -> None:
        self.table = orig_to_new_substr

    def apply(self, weights: Any) -> Any:
        for given, weight in weights:
            name = given
            for old, new in self.table.items():
                name = name.replace(old, new)
            yield name, weight
