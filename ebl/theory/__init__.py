"""The theory of the learning rules as numbers: losses, a table of statements, counter-examples, how networks settle."""

from ebl.theory.losses import (
    centred_surrogate_loss,
    contrastive_function,
    coupled_loss_1,
    coupled_loss_2,
    free_energy,
    surrogate_loss,
)
from ebl.theory.phases import AssumptionError
from ebl.theory.statements import Row
from ebl.theory.table import statements

__all__ = [
    "AssumptionError",
    "Row",
    "centred_surrogate_loss",
    "contrastive_function",
    "coupled_loss_1",
    "coupled_loss_2",
    "free_energy",
    "statements",
    "surrogate_loss",
]
