"""TBP and RBP on the fused kernels: the adjoint of a settled network, by the kernels of perturbed phases.

Second derivatives of an energy are symmetric, so the adjoint m of a free equilibrium obeys what a small deviation from it
obeys: m_k is what layer k hears of its neighbours' m where its units can move, and 0 where they are at a bound; pools keep
their winners; the output adds -dC/do. The kernels of `ebl.engine.deviation` compute just this for a layer whose units rest at
1/2, those at a bound held down, and whose winners are ahead by far. The gradient is that of a contrast of phases at -m and +m.

TBP, K iterations forth and back: the sum of its adjoints over time is K iterations for m, colours in reverse order, from 0.
RBP, K iterations of all layers at once from m = -dC/do at the output: in a chain, every second of them changes one colour and
the others the other. So K half iterations lead to the same, the colour without the output first.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ebl.config import Config
from ebl.engine.deviation import LIMIT, SCALE, Deviation
from ebl.engine.fused import Fused, Lanes, Perturbed, Phase, factors
from ebl.rules import RULES
from ebl.rules.backprop import Unrolled

SIZE = 1 / 16  # of the adjoint: far from where a unit at 1/2 would meet a bound, and from what 16 bits cannot resolve

MARGIN = 2e-3  # of a field that was found with states in 16 bits


class Adjoint:
    """Leaves -m and +m in the two phases of `both`, which `Contrasts` takes."""

    def __init__(self, fused: Fused, free: Phase, both: Perturbed, config: Config):
        self.fused, self.free, self.both = fused, free, both
        self.unrolled = isinstance(RULES[config.rule], Unrolled)
        n, count, groups = len(free), config.nudged.iterations, fused.groups()
        layers = [_resting(layer, n) for layer in both.layers]
        self.m = replace(
            both,
            layers=layers,
            stored=fused.stored(layers, n, torch.float16, fused.weights),
            heard=torch.zeros_like(both.heard[:, n:]),
            output=both.output[n:],
            output_gap=both.output_gap[n:],
        )
        self.nothing = torch.zeros_like(free.layers[-1].hi)
        self.more = factors(config.nudged, len(groups), count, fused.device)  # of TBP's iterations forth
        if self.unrolled:
            self.groups, self.omegas = groups[::-1] * count, self.more
        else:
            others_first = sorted(groups, key=lambda group: fused.num_hidden in group)
            self.groups = [others_first[i % 2] for i in range(count)]
            self.omegas = torch.ones(count, device=fused.device)

    @torch.no_grad()
    def solve(self, target: Tensor) -> None:
        """At the state `free` is in; for TBP, K iterations later."""
        fused, free, m, n = self.fused, self.free, self.m, len(self.free)
        if self.unrolled:
            fused.relax(free, len(self.more) // len(fused.groups()), self.more)
        fused.rest(free, self.both)
        for layer, at_rest in zip(m.layers, self.both.layers, strict=True):
            _hold(layer, at_rest)
        pulled = free.output + SIZE * (target - free.output)
        m.output.copy_(free.output if self.unrolled else pulled)
        self._move_output(pulled, None)

        def move(k: int, omega: Tensor, last: bool, lanes: Lanes) -> None:
            if k == fused.num_hidden:
                lanes.after(k - 1)
                self._move_output(pulled, omega)
            else:
                fused.deviate(m, k, omega, lanes)

        fused.iterate(self.groups, self.omegas, move)
        for layer in self.both.layers:
            for v in (layer.d, layer.du):
                if v is not None:
                    torch.neg(v[n:], out=v[:n])
        self.both.output[:n].copy_(2 * free.output - m.output)

    def _move_output(self, pulled: Tensor, omega: Tensor | None) -> None:
        m, fused = self.m, self.fused
        hidden, unit = m.layers[-1].d, 1 / SCALE
        fused.kernels.readout(
            *(self.nothing, hidden, unit, fused.readout, pulled, m.output, m.origin, m.heard, m.output_gap, omega, None, None)
        )


def _resting(layer: Deviation, n: int) -> Deviation:
    """Buffers of a layer of m, which lies in the second phase of `layer`."""
    found = replace(layer, hi=torch.zeros_like(layer.hi), slack=torch.zeros_like(layer.slack), d=layer.d[n:])
    if layer.behind is None or layer.du is None:
        return found
    return replace(found, behind=torch.zeros_like(layer.behind), u=None, du=layer.du[n:])


def _hold(layer: Deviation, at_rest: Deviation) -> None:
    """Units that can move at 1/2, the others held down, pools decided; m = 0.

    Over-relaxed units come to lie on a bound exactly, and their state knows it better than the rounded field does; others
    (omega < 1) only come near it, and their field is beyond it."""
    hi = at_rest.hi.float()
    s, field = hi + at_rest.lo.float(), hi + at_rest.slack.float() / SCALE
    moves = (s > 0) & (s < 1) & (field > -MARGIN) & (field < 1 + MARGIN)
    layer.hi.copy_(0.5 * moves)
    layer.slack.copy_(-LIMIT * ~moves)
    layer.d.zero_()
    if layer.behind is not None and at_rest.behind is not None and layer.du is not None:
        layer.behind.copy_(-LIMIT * (at_rest.behind != 0))
        layer.du.zero_()
