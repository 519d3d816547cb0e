"""Energy-based learning: networks that settle to an equilibrium, trained by local rules."""

from ebl.boundary import Clamp, Free, Nudge
from ebl.costs import Cost, CrossEntropy, SquaredError
from ebl.errors import InputError
from ebl.models.hopfield import ConvHopfield, DenseHopfield
from ebl.relax import Schedule, relax
from ebl.rules import RULES, Estimate, estimate_gradients
from ebl.types import Energy, Settled, State, Trajectory
from ebl.version import __version__

__all__ = [
    "RULES",
    "Clamp",
    "ConvHopfield",
    "Cost",
    "CrossEntropy",
    "DenseHopfield",
    "Energy",
    "Estimate",
    "Free",
    "InputError",
    "Nudge",
    "Schedule",
    "Settled",
    "SquaredError",
    "State",
    "Trajectory",
    "__version__",
    "estimate_gradients",
    "relax",
]
