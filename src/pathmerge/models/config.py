"""The kinds of models as configs: one dial, `input_size`, and the options of SPEC section 3.

A config is a frozen dataclass that builds its model. Importing this imports no torch; `build` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pathmerge.encodings.language import ATOM_WIDTH, WORDS, text_width
from pathmerge.encodings.language import PAD as TEXT_PAD
from pathmerge.errors import check_choice, check_flag, check_known, check_number, check_range, plain
from pathmerge.layout import MAX_INPUT_SIZE

if TYPE_CHECKING:
    from pathmerge.models.transformer import Transformer

Initialisation = Literal["default", "matching"]
Positions = Literal["onehot", "learned", "rotary", "none"]
Embedding = Literal["onehot", "learned"]

MOST_LAYERS = 1000
LATER = ("following", "asking", "legible")
"""Fields that came later: left out when not set, so that runs without them have the names they had before."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A pre-LN transformer; the subclasses say how it reads its input."""

    input_size: int
    """N, the size of the problems in symbolic tokens; everything else derives from it."""
    layers: int = 6
    """Blocks with weights of their own."""
    heads: int = 1
    """Attention heads; they share the width, so their number must divide it."""
    loops: int = 1
    """How often the stack of blocks is applied; more than 1 is a looped transformer."""
    initialisation: Initialisation = "default"
    """PyTorch's default, or `matching`: attention starts out matching equal vertices (a prior: tracks T1m, T2m)."""
    matching: float = 1.0
    """With `matching`: what is added to the diagonal between the parts of W_q and W_k that hold vertex ids."""
    feed_forward_scale: float = 1.0
    """What the initial weights of each layer's second feed-forward matrix are multiplied with. Near 0 a layer begins as
    attention alone, and what it copies is not drowned in noise (an initial scale: track T1)."""
    reach: bool = False
    """A second output, for training only (track T3): from each row before the last layer, whether its vertex leads to
    the goal."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_range("input_size", self.input_size, 11, MAX_INPUT_SIZE)
        check_range("layers", self.layers, 1, MOST_LAYERS)
        check_range("loops", self.loops, 1, MOST_LAYERS)
        check_choice("initialisation", self.initialisation, ("default", "matching"))
        check_number("matching", self.matching, 0, 1000)
        check_number("feed_forward_scale", self.feed_forward_scale, 0, 1000)
        check_flag("reach", self.reach)
        check_range("heads", self.heads, 1, self.width)
        if self.width % self.heads:
            allowed = [h for h in range(1, 33) if self.width % h == 0]
            raise ValueError(
                f"heads={self.heads}: must divide the width d={self.width}, for instance {', '.join(map(str, allowed))}"
            )

    @property
    def width(self) -> int:
        """d, the width of the residual stream."""
        raise NotImplementedError

    @property
    def vocabulary(self) -> int:
        """How many tokens the model can answer."""
        return (self.input_size - 5) // 3 + 5

    def to_dict(self) -> dict[str, Any]:
        """The config as plain values; `model_from_dict` is the inverse."""
        values = {key: plain(value) for key, value in asdict(self).items() if key not in LATER or value is not None}
        return {"name": self.name, **values}

    def without_prior(self) -> Self:
        """The same model with PyTorch's initialisation: nothing of the task in it."""
        return replace(self, initialisation="default")

    def build(self, seed: int = 0) -> Transformer:
        """The model with its initial weights, which depend on nothing but this config and the seed."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class OneHot(ModelConfig):
    """The paper's transformer over a row of tokens. N=128, hidden 16, 6 layers: d=190 and 1,311,380 parameters."""

    name: ClassVar[str] = "onehot"

    hidden: int = 16
    """Free dimensions of the residual stream besides those for tokens and positions."""
    embedding: Embedding = "onehot"
    """Fixed one-hot tokens in dimensions of their own, or learned vectors over the whole width; the output is tied."""
    positions: Positions = "onehot"
    """One-hot in dimensions of their own, learned vectors that are added, rotary (queries, keys turned), or none."""
    causal: bool = False
    """Whether a row sees only rows before it. Padding is never seen."""
    text: bool = False
    """Reads and writes sentences (the language encoding) instead of symbolic tokens."""
    joining: float = 0.0
    """With `matching` and one-hot positions: what is added in the first layer between the positions of the two ends of
    an edge of a search problem, so that they read each other (a prior on top of matching tokens)."""
    following: float | None = None
    """With `joining`: what is added from the second layer on so that a row looks for the vertices it has read: those at
    the other end of its edge, at the ends of the edges found there, and so on (a prior; `matching` then may be 0)."""
    asking: float | None = None
    """With `following`: what is added in all layers but the last so that the last row looks at the goal. It then reads
    the graph when all merging is done, and not in a layer that merging would have to move up from (a prior)."""
    legible: bool | None = None
    """Whether attention starts out writing nothing, in all layers but the last, where a row's own vertex stands. What
    it copies is then no noise to those who look for that vertex (an initial scale: track T1)."""

    def __post_init__(self) -> None:
        check_range("hidden", self.hidden, 0, 2**16)
        check_choice("embedding", self.embedding, ("onehot", "learned"))
        check_choice("positions", self.positions, ("onehot", "learned", "rotary", "none"))
        check_flag("causal", self.causal)
        check_flag("text", self.text)
        check_number("joining", self.joining, 0, 1000)
        for name in ("following", "asking"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 0, 1000)
        if self.legible is not None:
            check_flag("legible", self.legible)
        super().__post_init__()
        if self.legible and (self.embedding != "onehot" or self.loops > 1 or self.layers < 2):
            raise ValueError("legible=True: needs embedding='onehot', loops=1 and 2 layers or more")
        if self.joining and (self.initialisation != "matching" or self.positions != "onehot" or self.text):
            raise ValueError(
                f"joining={self.joining}: needs initialisation='matching', positions='onehot' and symbolic tokens"
            )
        one_stack = self.heads == self.loops == 1 and self.layers > 1
        if self.following and not (self.joining and one_stack and self.embedding == "onehot"):
            raise ValueError(
                f"following={self.following}: needs joining, heads=1, loops=1, 2 layers or more and embedding='onehot'"
            )
        if self.asking and not self.following:
            raise ValueError(f"asking={self.asking}: needs following")
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise ValueError(
                f"heads={self.heads}: rotary positions need heads of even width, d={self.width} gives "
                f"{self.width // self.heads}"
            )
        needed = self.matched + (self.tokens if self.joining else 0)
        if self.initialisation == "matching" and self.width // self.heads < needed:
            raise ValueError(
                f"heads={self.heads}: initialisation='matching' needs heads at least {needed} wide, one dimension for "
                f"each vertex token{' and position' if self.joining else ''}, d={self.width} gives "
                f"{self.width // self.heads}"
            )

    @property
    def matched(self) -> int:
        """How many tokens a matching initialisation tells apart: the vertices, or all words."""
        return self.vocabulary - 5 if not self.text else self.vocabulary

    @property
    def vocabulary(self) -> int:
        return len(WORDS) if self.text else super().vocabulary

    @property
    def tokens(self) -> int:
        """Tokens of an input, padding included."""
        return text_width(self.input_size) if self.text else self.input_size

    @property
    def answer_width(self) -> int:
        """How many tokens the answer has: one vertex, or an atom of four words."""
        return ATOM_WIDTH if self.text else 1

    @property
    def pad(self) -> int:
        return TEXT_PAD if self.text else self.vocabulary - 2

    @property
    def width(self) -> int:
        """vocabulary + hidden + tokens, plus 1 if rotary positions need it even; no positions, no room for them."""
        places = 0 if self.positions == "none" else self.tokens
        wide = self.vocabulary + self.hidden + places
        return wide + wide % 2 if self.positions == "rotary" else wide

    def without_prior(self) -> Self:
        return replace(self, initialisation="default", joining=0.0, following=None, asking=None)

    def build(self, seed: int = 0) -> Transformer:
        from pathmerge.models.sequence_transformer import SequenceTransformer

        return SequenceTransformer(self, seed)


@dataclass(frozen=True, kw_only=True)
class Rotary(OneHot):
    """A causal decoder with learned tokens and real rotary positions, as wide as the one-hot model (plus 1 if odd)."""

    embedding: Embedding = "learned"
    positions: Positions = "rotary"
    causal: bool = True

    name: ClassVar[str] = "rotary"


@dataclass(frozen=True, kw_only=True)
class Edges(ModelConfig):
    """The edge-token transformer. About a third of the tokens, and no slot to learn by heart."""

    heads: int = 2
    matching: float = 0.5
    end_width: int | None = None
    """Dimensions for each end of an edge; none: at least V and at least 32, in fours. The width is three times this."""
    spread: float = 1.0
    """Standard deviation of the initial vectors of vertices and kinds. Short ones (1/√end) take twice the examples: the
    layers' first outputs drown them, and matching with them."""

    name: ClassVar[str] = "edges"

    def __post_init__(self) -> None:
        if self.end_width is not None:
            check_range("end_width", self.end_width, 1, 2**14)
        check_number("spread", self.spread, 0, 1000)
        super().__post_init__()
        if self.initialisation == "matching" and self.width // self.heads < self._matched_width:
            raise ValueError(
                f"heads={self.heads}: initialisation='matching' needs heads at least {self._matched_width} wide, "
                f"d={self.width} gives {self.width // self.heads}"
            )

    @property
    def end(self) -> int:
        vertices = self.vocabulary - 5
        return self.end_width if self.end_width is not None else max(32, -(-vertices // 4) * 4)

    @property
    def _matched_width(self) -> int:
        return self.end * (2 if self.heads == 1 else 1)

    @property
    def width(self) -> int:
        return 3 * self.end

    def build(self, seed: int = 0) -> Transformer:
        from pathmerge.models.edge_transformer import EdgeTransformer

        return EdgeTransformer(self, seed)


MODELS: dict[str, type[ModelConfig]] = {kind.name: kind for kind in (OneHot, Rotary, Edges)}


def model_from_dict(values: Mapping[str, Any]) -> ModelConfig:
    """The inverse of `ModelConfig.to_dict`; unknown names and fields are errors."""
    given = dict(values)
    name = given.pop("name", None)
    check_known("model.name", name, MODELS)
    kind = MODELS[str(name)]
    for field in given:
        check_choice(f"{name} field", field, [f.name for f in fields(kind)])
    if "input_size" not in given:
        raise ValueError(f"model: the field input_size is missing; {name} derives everything else from it")
    return kind(**given)
