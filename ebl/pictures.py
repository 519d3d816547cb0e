"""Pictures for papers: PNG to look at, PDF to include. matplotlib is imported here only."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def draw_error_curves(curves: dict[str, list[float]], path: Path) -> Path:
    """Test error by epoch, a line for each rule."""
    figure, axes = _figure(1)
    styles = ["-", "--", ":"]
    for i, (rule, errors) in enumerate(curves.items()):
        epochs = range(1, len(errors) + 1)
        axes[0].plot(epochs, [100 * e for e in errors], styles[i % 3], marker="o", markersize=3, label=rule, color=f"C{i}")
    axes[0].set(xlabel="epoch", ylabel="test error (%)", yscale="log")
    axes[0].set_xticks(range(1, max(map(len, curves.values())) + 1))
    axes[0].yaxis.set_major_formatter("{x:g}")
    axes[0].yaxis.set_minor_formatter("{x:g}")
    axes[0].legend(ncols=3, fontsize="small")
    return _save(figure, path)


def draw_relaxation(runs: dict[str, tuple[list[float], list[float]]], path: Path) -> Path:
    """Energy above its own limit (equilibria are not unique), and residual, by iteration: a line for each schedule."""
    figure, axes = _figure(2)
    for name, (energy, residual) in runs.items():
        iterations = range(1, len(energy) + 1)
        axes[0].plot(iterations, [max(e, 1e-5) for e in energy], label=name)
        axes[1].plot(iterations, [max(r, 1e-8) for r in residual], label=name)
    axes[0].set(xlabel="iteration", ylabel="energy above its limit", yscale="log")
    axes[1].set(xlabel="iteration", ylabel="residual", yscale="log")
    axes[1].legend(fontsize="small")
    return _save(figure, path)


def _figure(columns: int) -> tuple[Any, list[Any]]:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, columns, figsize=(4.8 * columns, 3.6), layout="constrained", squeeze=False)
    for ax in axes[0]:
        ax.grid(alpha=0.3, which="both")
    return figure, list(axes[0])


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path.with_suffix(".pdf"))
    figure.savefig(path.with_suffix(".png"), dpi=200)
    import matplotlib.pyplot as plt

    plt.close(figure)
    return path.with_suffix(".png")
