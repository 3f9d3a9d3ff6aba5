"""Weights on disk: safetensors with the model's config beside them, and import of other programs' state dicts.

Choices a reader could not guess:
- Nothing here executes code: safetensors hold numbers only, and `.pt`/`.pth` files are read with torch's weights-only
  unpickler, which knows tensors and plain containers and refuses everything else.
- Import goes by role, not by one program's names: a layer number and a part that says q, k, v, o, one of the two
  feed-forward matrices or one of the norms, in the spellings common in the field. `rename` settles what it cannot tell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathmerge.disk import written_whole
from pathmerge.models.config import ModelConfig, model_from_dict
from pathmerge.models.transformer import Transformer

FORMAT = "pathmerge weights"
_ROLES = {
    "q": r"q|wq|w_q|query|q_proj|proj_q|q_linear|query_proj",
    "k": r"k|wk|w_k|key|k_proj|proj_k|k_linear|key_proj",
    "v": r"v|wv|w_v|value|v_proj|proj_v|v_linear|value_proj",
    "o": r"o|wo|w_o|out|output|o_proj|out_proj|proj_o|linear|attn_out|proj|output_proj",
    "ff1": r"ff1|ff_1|fc1|w1|w_1|linear1|lin1|up|up_proj|c_fc|ff\.0|mlp\.0|ffn\.0|net\.0",
    "ff2": r"ff2|ff_2|fc2|w2|w_2|linear2|lin2|down|down_proj|c_proj|ff\.[123]|mlp\.[123]|ffn\.[123]|net\.[123]",
    "ln1": r"ln1|ln_1|norm1|norm_1|ln_attn|ln_attention|attn_norm|attention_norm|input_layernorm",
    "ln2": r"ln2|ln_2|norm2|norm_2|ln_ff|ln_mlp|ffn_norm|mlp_norm|ff_norm|post_attention_layernorm",
}
_FINAL = r"ln_final|ln_f|norm_f|final_norm|final_ln|ln_head|ln|norm"
_SIDES = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


def save_weights(model: Transformer, path: Path | str, *, half: bool = False) -> None:
    """Write a model: weights and config in one safetensors file; `half`: rounded to 16 bits, in half the space."""
    from safetensors.torch import save

    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"path={str(path)!r}: the name must end in .safetensors")
    tensors = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    if half:
        tensors = {name: value.half() for name, value in tensors.items()}
        for name, value in tensors.items():
            if not value.isfinite().all():
                raise ValueError(f"half=True: {name!r} holds numbers that 16 bits cannot, above 65,504")
    # One entry: safetensors writes several in random order, and the same weights should be the same file.
    header = {FORMAT: json.dumps(model.config.to_dict())}
    with written_whole(path, "path") as temporary:
        temporary.write_bytes(save(tensors, header))


def load_weights(path: Path | str) -> Transformer:
    """The model that `save_weights` wrote."""
    path = Path(path)
    tensors, header = _read_safetensors(path)
    if FORMAT not in header:
        raise ValueError(f"path={str(path)!r}: not a file of {FORMAT}; import_weights reads those of other programs")
    try:
        config = model_from_dict(json.loads(header[FORMAT]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"path={str(path)!r}: its model cannot be read ({error})") from None
    model = config.build()
    fill(model, tensors, f"path={str(path)!r}")
    return model


@torch.no_grad()
def fill(model: Transformer, tensors: Mapping[str, Tensor], source: str) -> None:
    """Copy tensors into a model, all or nothing; `source` is named where something does not fit."""
    own = model.state_dict()
    for name in sorted(own.keys() ^ tensors.keys()):
        raise ValueError(f"{source}: {'lacks' if name in own else 'has an unknown'} tensor {name!r}")
    for name, value in own.items():
        if tensors[name].shape != value.shape:
            raise ValueError(
                f"{source}: {name!r} has shape {tuple(tensors[name].shape)}, the model's has {tuple(value.shape)}"
            )
        if not tensors[name].is_floating_point():
            raise ValueError(f"{source}: {name!r} holds {tensors[name].dtype}, must hold floats")
    for name, value in own.items():
        value.copy_(tensors[name])


def import_weights(
    config: ModelConfig, source: Path | str | Mapping[str, Tensor], *, rename: Mapping[str, str] | None = None
) -> Transformer:
    """A model with the weights of a plain state dict of the published shapes: a mapping, .safetensors, .pt or .pth.

    `rename` maps names of the source to ours (`config.build().state_dict()` lists those); "" leaves a tensor out.
    Matrices are outputs x inputs, as in `torch.nn.Linear`.
    """
    if isinstance(source, Mapping):
        tensors, name = dict(source), "source"
    else:
        name = f"source={str(source)!r}"
        tensors = _read(Path(source))
    for key in rename or {}:
        if key not in tensors:
            raise ValueError(f"rename[{key!r}]: {name} has no such tensor")
    model = config.build()
    own = model.state_dict()
    found: dict[str, Tensor] = {}
    origin: dict[str, str] = {}
    for key, value in tensors.items():
        if not isinstance(key, str):
            raise ValueError(f"{name}: the key {key!r} is {type(key).__name__}, must be a tensor's name")
        if not isinstance(value, Tensor):
            raise ValueError(f"{name}: {key!r} is {type(value).__name__}, must be a tensor")
        target = (rename or {}).get(key)
        if target is None:
            target = key if key in own else _role(key)
        if target == "":
            continue
        if target is None or target not in own:
            raise ValueError(f"{name}: {key!r} has no place in the model; give rename={{{key!r}: ...}}")
        if target in found:
            raise ValueError(f"{name}: {origin[target]!r} and {key!r} both mean {target!r}; give rename")
        found[target], origin[target] = value, key
    fill(model, found, name)
    return model


def _role(key: str) -> str | None:
    """Our name for a tensor of another program; none if its name does not say what it is."""
    *path, side = key.lower().split(".")
    if side not in _SIDES or not path:
        return None
    side = _SIDES[side]
    layer = next((i for i, part in enumerate(path) if re.fullmatch(r"\d+", part)), None)
    if layer is None:
        return f"ln_final.{side}" if re.fullmatch(_FINAL, path[-1]) else None
    rest = ".".join(path[layer + 1 :])
    for role, pattern in _ROLES.items():
        if re.search(rf"(^|\.)({pattern})$", rest):
            return f"blocks.{path[layer]}.{role}.{side}"
    return None


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return _read_safetensors(path)[0]
    if path.suffix not in (".pt", ".pth"):
        raise ValueError(f"source={str(path)!r}: the name must end in .safetensors, .pt or .pth")
    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ValueError(f"source={str(path)!r}: no such file") from None
    except Exception as error:  # whatever torch makes of foreign bytes, or of code it refuses to run
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"source={str(path)!r}: cannot be read as plain weights ({reason})") from None
    if not isinstance(loaded, Mapping):
        raise ValueError(f"source={str(path)!r}: holds {type(loaded).__name__}, must hold a mapping of tensors")
    return dict(loaded)


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ValueError(f"path={str(path)!r}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"path={str(path)!r}: cannot be read as safetensors ({error})") from None
