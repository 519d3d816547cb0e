"""How many iterations free phases take: as many as hold their mean residual at a wanted value.

Settling gets slower as a network learns, so a fixed small number is a trap and a fixed large one a waste. The number changes
between steps, at fixed steps and from sums kept in checkpoints, so that a resumed run goes the same way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LOOK = 25  # steps between two looks at the residual
GAIN = 4.0  # iterations for a residual e times too large: it falls by a fifth or so with each
FIRST, LEAST = 15, 4


@dataclass
class Pace:
    iterations: int
    examples: float = 0.0  # sums of this epoch at the last look
    residual: float = 0.0

    @staticmethod
    def starting(wanted: float | None, most: int) -> Pace:
        return Pace(most if wanted is None else min(FIRST, most))

    def look(self, examples: float, residual: float, wanted: float, most: int) -> None:
        """Take in the epoch's sums and choose the number for the next steps."""
        new = examples - self.examples
        if new <= 0:
            return
        mean = (residual - self.residual) / new
        self.examples, self.residual = examples, residual
        if not math.isfinite(mean):
            return
        off = math.log(max(mean, 1e-12) / wanted)
        if off > 0:
            self.iterations += min(math.ceil(GAIN * off), max(2, self.iterations // 4))
        elif off < -2 / GAIN:  # within this of the wanted value, stay
            self.iterations -= min(int(-GAIN * off / 2), 2)
        self.iterations = max(min(LEAST, most), min(self.iterations, most))

    def new_epoch(self) -> None:
        self.examples = self.residual = 0.0

    def for_test(self, wanted: float | None, most: int) -> int:
        """Test images start at zero and may settle slower: a quarter more."""
        return most if wanted is None else min(most, math.ceil(1.25 * self.iterations))
