"""Named places inside a model where a value can be read or overwritten (TransformerLens names).

Choices a reader could not guess:
- A value passes through `Sites.__call__` before it is used, so whatever an edit returns is what the rest of the model
  sees. There is no site whose value is only a report.
- An edit is a tensor of the site's exact shape or a function from the old value to the new one. An edit at an unknown
  site, of a wrong shape, or at a site the run never came to is an error: a silent edit is this field's defining bug.
- `mlp.hook_mask` is a site of our own: the 0/1 mask the ReLU multiplies with. Writing a recorded mask freezes the ReLU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches

from torch import Tensor

Edit = Tensor | Callable[[Tensor], Tensor]

BLOCK_SITES = (
    "hook_resid_pre",
    "ln1.hook_scale",
    "ln1.hook_normalized",
    "attn.hook_q",
    "attn.hook_k",
    "attn.hook_v",
    "attn.hook_rot_q",
    "attn.hook_rot_k",
    "attn.hook_attn_scores",
    "attn.hook_pattern",
    "attn.hook_z",
    "attn.hook_result",
    "hook_attn_out",
    "hook_resid_mid",
    "ln2.hook_scale",
    "ln2.hook_normalized",
    "mlp.hook_pre",
    "mlp.hook_mask",
    "mlp.hook_post",
    "hook_mlp_out",
    "hook_resid_post",
)
FINAL_SITES = ("ln_final.hook_scale", "ln_final.hook_normalized")


class Sites:
    """The edits and the records of one run."""

    def __init__(self, known: Iterable[str], edits: Mapping[str, Edit] | None, record: Iterable[str]) -> None:
        names = tuple(known)
        self.edits = dict(edits or {})
        self._wanted = set(record)
        for name in self.edits:
            _check_site("edits", name, names)
        for name in self._wanted:
            _check_site("record", name, names)
        for name, edit in self.edits.items():
            if not isinstance(edit, Tensor) and not callable(edit):
                raise ValueError(f"edits[{name!r}]: is {type(edit).__name__}, must be a tensor or a function")
        self.record: dict[str, Tensor] = {}
        self._fired: set[str] = set()

    def asked(self, name: str) -> bool:
        """Whether this run reads or writes the site."""
        return name in self._wanted or name in self.edits

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """Pass a value on through its site."""
        if name in self.edits:
            edit = self.edits[name]
            new = edit if isinstance(edit, Tensor) else edit(value)
            if not isinstance(new, Tensor):
                raise ValueError(f"edits[{name!r}]: gave {type(new).__name__}, must give a tensor")
            if new.shape != value.shape:
                raise ValueError(f"edits[{name!r}]: has shape {tuple(new.shape)}, must be {tuple(value.shape)}")
            if new.dtype != value.dtype or new.device != value.device:
                is_now, must = f"{new.dtype} on {new.device}", f"{value.dtype} on {value.device}"
                raise ValueError(f"edits[{name!r}]: is {is_now}, must be {must}")
            value = new
            self._fired.add(name)
        if name in self._wanted:
            self.record[name] = value
        return value

    def finish(self) -> dict[str, Tensor]:
        """The records; raises if an edit never fired or a record was never reached."""
        for name in self.edits:
            if name not in self._fired:
                raise ValueError(f"edits[{name!r}]: never took effect: the run does not come to this site")
        for name in sorted(self._wanted - set(self.record)):
            raise ValueError(f"record: {name!r} was not reached by this run")
        return self.record


def _check_site(field: str, name: str, known: tuple[str, ...]) -> None:
    """Raise unless a site is known; there are too many to list, so the nearest is named."""
    if name not in known:
        near = get_close_matches(str(name), known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"{field}={name!r}: no such site{hint}; model.sites lists all {len(known)}")
