"""The compiled model: weights written by hand that carry out exponential path-merging.

It is an ordinary one-hot model (hidden 16, one head). With k merging layers it solves exactly the problems whose goal
is at most 2^k steps from start: the upper bound for accuracy, and the known truth for circuits.

How it works. The row of an edge's source u, called the edge's row, holds four vectors with one number per vertex: its
*own* vertex u (the token), the edge's *child* c, its *front*, the ends of all walks that begin with this edge and have
exactly 1, 2, 4, ... steps (0 or 1 each), and its *reach*, what its fronts were made of so far (below).

- Layer 0 **joins**: each edge's row attends, by position, to the row on its right, and so gets c as child, front and
  reach, and a flag "this is an edge's row". The last row attends to the goal's row and gets the goal as child.
  The goal's row becomes an edge goal → goal: walks that have arrived stay, so "exactly 2^k steps" means "at most".
- Layers 1..k **merge**: an edge's row attends to every edge's row whose own vertex is in its front, and the union of
  their fronts becomes its new front. Walks are twice as long now.
- Layer k+1 **reads**: the last row attends to the edges' rows whose own vertex is start and whose front holds the goal,
  and answers their children. If there is none, it answers token 0, which is never right.
- A row with nothing to attend to attends to the two sinks, the rows of QUERY and PATH, which have nothing to give.

Choices a reader could not guess:
- LayerNorm: a large pair (+c, -c) in the hidden dimensions makes a row's variance all but constant, and the gain undoes
  it (and hides the pair). A dimension that is always 0 shows the mean that was taken off; every matrix adds it back.
- Places: front, child and reach stand in the position dimensions of the edges' EDGE, source and target tokens, which
  are free after layer 0. The last five positions stay: a few rows are told apart by them.
- Union: attention gives the mean of the sources' fronts, written with a minus sign over the own vertex (which no walk
  comes back to). Two ReLUs, both off wherever the mean is at least LEAST / (V+1), make that exactly 1; another clears
  the mean away.
- Reach: such a step hides what a 1 came from, and the method of docs/circuits.md, which freezes ReLUs, would find no
  cause for it. So the mean of the sources' reaches is added to the row's own, without any ReLU from layer to layer, and
  a front's vertex asks with SHARP times its 1 and HINT times its reach: little enough for all matches of a row to weigh
  about the same, enough to be found. (Where paths fork, reach is a share of 1.)
- Fronts, not everything reached: a goal three steps away would arrive twice and no operation would be necessary. Two
  sinks, not one: attention to nothing should not be necessary either.
- Right answers get equal logits but for a slope in the final bias, by which the smallest id is the prediction.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pathmerge.errors import check_number, check_range
from pathmerge.layout import Layout
from pathmerge.models.config import OneHot
from pathmerge.models.transformer import EPSILON, Block, Transformer

SHARP = 80.0
"""What a match, by a vertex or by position, adds to an attention score; sinks stand half of it below."""
HINT = 0.5
"""What a reach of 1 adds."""
LEAST = 0.5
"""No match weighs less than LEAST / (V+1): reach would have to differ by 1.4 among V+1 matches, by 6 between two."""
PAIR = 100.0
"""The pair that steadies LayerNorm, in units of √V: attention weights are then exact to about 0.1%."""
LOGIT = 15.0
"""An answer's logit; others have about 0, start far less."""
SLOPE = 0.01
"""How much the final bias falls from one vertex id to the next."""
READ = 0.125
"""What the reading layer's attention writes of a child, before its feed-forward makes it an answer."""
NO_ANSWER = 0


def compiled(input_size: int, merges: int | None = None, *, noise: float = 0.0, seed: int = 0) -> Transformer:
    """The model with `merges` merging layers; none given: enough for any distance that fits the input size.

    `noise` adds Gaussian numbers to every matrix and every bias (LayerNorm's gains stay), with a standard deviation of
    `noise` times the root mean square of that tensor's nonzero entries.
    """
    layout = Layout(input_size)
    merges = most_merges(layout) if merges is None else check_range("merges", merges, 0, 100)
    check_number("noise", noise, 0, 1000)
    check_range("seed", seed, 0, 2**62)
    model = OneHot(input_size=input_size, layers=merges + 2, hidden=16).build()
    plan = _Plan(input_size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        first, *middle, last = (block for block in model.blocks if isinstance(block, Block))
        _write_join(first, plan)
        for block in middle:
            _write_merge(block, plan)
        _write_read(last, plan)
        for block in (first, *middle, last):
            _write_norms(block, plan, plan.first_scale if block is first else plan.scale)
        model.ln_final.weight.fill_(plan.scale)
        model.ln_final.bias[plan.own] = -SLOPE * plan.own
        model.ln_final.bias[NO_ANSWER] = 1
        if noise:
            _add_noise(model, noise, seed)
    return model


def most_merges(layout: Layout) -> int:
    """Merges that are enough for every distance: the largest is V - 1 steps."""
    return (layout.max_vertices - 2).bit_length()


class _Plan:
    """Which dimension of the residual stream holds what, and the numbers that depend on the size.

    A vector over the vertices 1..V is a tensor of V dimensions. The same numbers name the units inside a block.
    """

    def __init__(self, input_size: int) -> None:
        vertices = Layout(input_size).max_vertices
        hidden = vertices + 5
        width = hidden + 16 + input_size
        self.vertices = vertices

        self.own = torch.arange(1, vertices + 1)  # tokens
        self.sinks = torch.tensor([vertices + 1, vertices + 4])  # the tokens PATH and QUERY
        self.pair = torch.tensor([hidden, hidden + 1])
        self.zero = hidden + 2  # always 0
        self.flag = hidden + 3  # 1 in an edge's row
        self.balance = hidden + 4  # minus all that the last feed-forward writes
        self.front = torch.arange(width - 5 - 3 * vertices, width - 5, 3)  # the places of EDGE tokens
        self.child = self.front + 1  # the places of the edges' sources
        self.reach = self.front + 2  # the places of the edges' targets
        self.goal_place, self.last_place = width - 3, width - 1

        # Queries and keys of this size give a score of SHARP, after the division by √d.
        self.match = math.sqrt(SHARP * math.sqrt(width))
        # Times this, the least mean that counts is 2: V edges' rows and the goal's row match.
        self.steep = 2 * (vertices + 1) / LEAST
        # LayerNorm's divisors: of an input, two ones, and once the pair is there.
        self.large = PAIR * math.sqrt(vertices)
        self.first_scale = math.sqrt(2 / width - (2 / width) ** 2 + EPSILON)
        self.scale = math.sqrt(2 * self.large**2 / width + EPSILON)


def _wire(linear: nn.Linear, outputs: Tensor | int, inputs: Tensor | int, weight: float) -> None:
    """Each output gets `weight` times the input beside it."""
    linear.weight[outputs, inputs] = weight


def _write_norms(block: Block, plan: _Plan, scale: float) -> None:
    """Gains that undo the division, and in every matrix behind a norm what undoes the mean."""
    for norm, size in ((block.ln1, scale), (block.ln2, plan.scale)):
        norm.weight.fill_(size)
        norm.weight[plan.pair] = 0
    for linear in (block.q, block.k, block.v, block.ff1):
        linear.weight[:, plan.zero] = -linear.weight.sum(1)


def _write_sinks(block: Block, plan: _Plan, score: float) -> None:
    """Every row scores the sinks at `score` times SHARP."""
    block.q.bias[plan.zero] = plan.match
    _wire(block.k, plan.zero, plan.sinks, score * plan.match)


def _write_join(block: Block, plan: _Plan) -> None:
    # Attention by position: an edge's source to its target, the last row to the goal.
    _wire(block.q, plan.child, plan.child, plan.match)
    _wire(block.k, plan.child, plan.reach, plan.match)
    _wire(block.q, plan.last_place, plan.last_place, plan.match)
    _wire(block.k, plan.last_place, plan.goal_place, plan.match)
    _write_sinks(block, plan, 0.5)
    # What a row gives: its vertex, and if it is an edge's target, the flag and minus the source's position.
    _wire(block.v, plan.own, plan.own, 1)
    _wire(block.v, plan.reach, plan.reach, 1)
    _wire(block.o, plan.child, plan.own, 1)
    _wire(block.o, plan.reach, plan.own, 1)
    _wire(block.o, plan.flag, plan.reach, 1)
    _wire(block.o, plan.child, plan.reach, -1)
    block.o.bias[plan.pair] = torch.tensor([plan.large, -plan.large])
    # Feed-forward: the places of the front are emptied (of positions), and an edge's row gets its child as front.
    _wire(block.ff1, plan.front, plan.front, 1)
    block.ff1.bias[plan.front] = 1
    _wire(block.ff2, plan.front, plan.front, -1)
    block.ff2.bias[plan.front] = 1
    _wire(block.ff1, plan.child, plan.child, 2)
    _wire(block.ff1, plan.child, plan.flag, 4)
    block.ff1.bias[plan.child] = -5
    _wire(block.ff2, plan.front, plan.child, 1)
    # The goal's row gets a front: a unit for each vertex that needs both the token and the position.
    _wire(block.ff1, plan.own, plan.own, 2)
    _wire(block.ff1, plan.own, plan.goal_place, 2)
    block.ff1.bias[plan.own] = -3
    _wire(block.ff2, plan.front, plan.own, 1)
    _write_clearing(block, plan, plan.reach)


def _write_merge(block: Block, plan: _Plan) -> None:
    # Scores in units of SHARP: own vertex in the front 1, an edge's row 1, so a match has 2 and the sinks have 1.5.
    _wire(block.q, plan.own, plan.front, plan.match)
    _wire(block.q, plan.own, plan.reach, plan.match * HINT / SHARP)
    _wire(block.k, plan.own, plan.own, plan.match)
    _write_sinks(block, plan, 1.5)
    _wire(block.k, plan.zero, plan.flag, plan.match)
    _wire(block.k, plan.zero, plan.goal_place, plan.match)
    # The goal's row and the last row see only the sinks.
    for place in (plan.goal_place, plan.last_place):
        _wire(block.q, plan.flag, place, 4 * plan.match)
    _wire(block.k, plan.flag, plan.sinks, plan.match)
    # The mean front goes, negative, over the own vertex, the mean reach to the row's own.
    for vector, place, times in ((plan.front, plan.own, -1), (plan.reach, plan.reach, 1)):
        _wire(block.v, place, vector, 1)
        _wire(block.o, place, place, times)
    # Feed-forward: the old front goes, except the goal's row's, and the new one comes.
    _wire(block.ff1, plan.front, plan.front, 1)
    _wire(block.ff1, plan.front, plan.goal_place, -4)
    _wire(block.ff2, plan.front, plan.front, -1)
    _write_step(block, plan.own, plan.front, -plan.steep, (plan.own, plan.reach))
    _write_clearing(block, plan, plan.child)


def _write_read(block: Block, plan: _Plan) -> None:
    # Scores in units of SHARP: own vertex is start 1, the front holds the goal 1, so a match has 2 and the sinks have
    # 1.5; in other rows than the last they have 5.5.
    for query, key in ((plan.own, plan.own), (plan.child, plan.front)):
        _wire(block.q, query, query, plan.match)
        _wire(block.k, query, key, plan.match)
    _write_sinks(block, plan, 5.5)
    _wire(block.q, plan.zero, plan.last_place, -4 / 5.5 * plan.match)
    # Children come in where the tokens are. Feed-forward: they become answers, and start, which is 1, the opposite.
    _wire(block.v, plan.child, plan.child, 1)
    _wire(block.o, plan.own, plan.child, READ)
    _write_step(block, plan.own, plan.own, 2 * (plan.vertices + 1) / READ, (plan.child, plan.front), LOGIT)
    _wire(block.ff1, plan.reach, plan.own, 2)
    block.ff1.bias[plan.reach] = -1
    _wire(block.ff2, plan.own, plan.reach, -2 * LOGIT)
    # The mean stays as it is, so that one answer's logit says nothing of the others.
    block.ff2.weight[plan.balance] = -block.ff2.weight.sum(0)
    block.ff2.bias[plan.balance] = -block.ff2.bias.sum()


def _write_step(
    block: Block, inputs: Tensor, outputs: Tensor, steep: float, units: tuple[Tensor, Tensor], by: float = 1
) -> None:
    """Add `by` to an output if s = steep · input is at least 2, nothing if it is at most 1.

    1 - relu(2 - s) + relu(1 - s): both units are off above the step, so the sum is exact.
    """
    root = math.sqrt(abs(steep))  # before and after the ReLU: no weight is large
    for unit, threshold, sign in ((units[0], 2, -1), (units[1], 1, 1)):
        _wire(block.ff1, unit, inputs, -steep / root)
        block.ff1.bias[unit] = threshold / root
        _wire(block.ff2, outputs, unit, sign * by * root)
    block.ff2.bias[outputs] = by


def _write_clearing(block: Block, plan: _Plan, unit: Tensor) -> None:
    """Numbers below 0 are taken away from the own vertex."""
    _wire(block.ff1, unit, plan.own, -1)
    _wire(block.ff2, plan.own, unit, 1)


def _add_noise(model: nn.Module, noise: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        gain = parameter.ndim == 1 and name.endswith("weight")
        if parameter.any() and not gain:
            size = parameter[parameter != 0].square().mean().sqrt()
            parameter += noise * size * torch.randn(parameter.shape, generator=generator)
