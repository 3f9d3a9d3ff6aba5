"""The trained models of this package by name, each with its card.

Choices a reader could not guess:
- A model is two files in `weights/`: NAME.safetensors (weights and architecture) and NAME.json (the card).
- The card holds the checksum of the weights: a file that does not fit its card is an error, not a model.
- Everything a card claims was measured on the shipped file, on test problems that its training never saw.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pathmerge.errors import check_choice
from pathmerge.training.config import RunConfig, config_from_dict

if TYPE_CHECKING:
    from pathmerge.models.transformer import Transformer

FORMAT = "pathmerge model card"
VERSION = 1
SHELF = Path(__file__).with_name("weights")
Counts = dict[str, dict[str, tuple[int, int]]]
"""For each distribution and difficulty: how many test problems were answered right, and of how many."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a trained model is, how it was made and how good it is."""

    name: str
    about: str
    """One line for people."""
    track: str
    """The recipe's track (SPEC section 9): T0, T1, T1m, T2, T2m or T3."""
    command: str
    """What trained it."""
    config: dict[str, Any]
    """The whole config of its run; `run_config` makes it one again."""
    parameters: int
    examples: int
    flops: float
    seconds: float
    finished: str
    accuracy: Counts
    made_with: dict[str, str]
    sha256: str
    """Of the file of weights."""

    @property
    def run_config(self) -> RunConfig:
        return config_from_dict(self.config)

    def share(self, distribution: str) -> float | None:
        """The mean accuracy over the difficulties of a test distribution, each counting the same."""
        cells = [right / seen for right, seen in self.accuracy.get(distribution, {}).values() if seen]
        return sum(cells) / len(cells) if cells else None

    def worst(self, distribution: str) -> float | None:
        """The accuracy at the difficulty where it is lowest."""
        cells = [right / seen for right, seen in self.accuracy.get(distribution, {}).values() if seen]
        return min(cells, default=None)

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1, ensure_ascii=False) + "\n"


def names(shelf: Path = SHELF) -> tuple[str, ...]:
    """The names of the models that are there."""
    return tuple(sorted(path.stem for path in shelf.glob("*.json")))


def card(name: str, shelf: Path = SHELF) -> Card:
    """The card of a model."""
    check_choice("model", name, names(shelf))
    path = shelf / f"{name}.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        kind, version = values.pop("format"), values.pop("version")
        if (kind, version) != (FORMAT, VERSION):
            raise ValueError(f"is {kind} of version {version}, must be {FORMAT} of version {VERSION}")
        accuracy = {of: {at: (n[0], n[1]) for at, n in cells.items()} for of, cells in values.pop("accuracy").items()}
        found = Card(**values, accuracy=accuracy)
        _check(found)
        return found
    except (OSError, KeyError, AttributeError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"card={str(path)!r}: cannot be read ({error})") from None


def _check(found: Card) -> None:
    """Raise unless what the card says is of the right kind, and its config one of ours."""
    numbers = {"parameters": int, "examples": int, "flops": (int, float), "seconds": (int, float)}
    for field, kind in (*numbers.items(), *((name, str) for name in ("name", "about", "command", "sha256"))):
        if not isinstance(getattr(found, field), kind):
            raise ValueError(f"{field}={getattr(found, field)!r}")
    if not isinstance(found.made_with, dict):
        raise ValueError(f"made_with={found.made_with!r}")
    _ = found.run_config


def load(name: str, shelf: Path = SHELF) -> Transformer:
    """A trained model by its name, such as load("balanced-32"); `pathmerge models` lists them."""
    from pathmerge.models.weights import load_weights

    described = card(name, shelf)
    path = weights_of(name, shelf)
    if checksum(path) != described.sha256:
        raise ValueError(f"model={name!r}: {str(path)!r} is not the file its card describes")
    return load_weights(path)


def weights_of(name: str, shelf: Path = SHELF) -> Path:
    return shelf / f"{name}.safetensors"


def checksum(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(f"weights={str(path)!r}: cannot be read ({error.strerror})") from None
