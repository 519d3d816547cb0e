"""The theory's pictures, in colours that the colour-blind and a grey printer tell apart too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ebl.theory.landscape import SevenRules
from ebl.theory.settling import Course

LOWERED, RAISED = "#14807a", "#cf5a14"
STRIDE = 3  # of the arrows that show a step of o*
TITLES = {
    "cl": "CL", "p-ep": "P-EP", "n-ep": "N-EP", "c-ep": "C-EP", "p-cpl": "P-CpL", "n-cpl": "N-CpL", "c-cpl": "C-CpL",
}  # fmt: skip


def draw_seven_rules(seen: SevenRules, path: Path) -> Path:
    """A panel for each rule: contours of the energy, what a step raises and lowers, and where it takes o*."""
    plt = _pyplot()
    figure, axes = plt.subplots(2, 4, figsize=(11.2, 5.0), layout="constrained")
    places = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]
    for (rule, title), place in zip(TITLES.items(), places, strict=True):
        ax, panel = axes[place], seen.panels[rule]
        ax.contourf(
            seen.o1, seen.o2, panel.change, levels=[k / 13 for k in range(-13, 14, 2)], cmap=_shades(), vmin=-1.7, vmax=1.7
        )
        ax.contour(seen.o1, seen.o2, seen.energy, levels=_levels(), colors="0.25", linewidths=0.4)
        ax.plot(*zip(panel.free, seen.target, strict=True), linestyle=(0, (2, 2)), color="0.2", linewidth=0.9)
        for point, label, up in ((panel.raised, r"$o_{-\beta}$", True), (panel.lowered, r"$o_\beta$", False)):
            if point not in (panel.free, seen.target):
                _mark(ax, point, "o", 5.5, label, (-8, -15) if up else (13, 2))
            _force(ax, point, up)
        _mark(ax, panel.free, "*", 12, r"$o_\bigstar$")
        _mark(ax, seen.target, "X", 7.5, "$y$")
        end = [a + STRIDE * (b - a) for a, b in zip(panel.free, panel.moved, strict=True)]
        ax.annotate("", end, panel.free, arrowprops=_way("black"), zorder=6)
        ax.set(xticks=[], yticks=[], aspect="auto", title=title)
    _key(axes[1, 0], seen.beta)
    return _save(figure, path)


def draw_surrogates(betas: Sequence[float], curves: Mapping[str, Sequence[float]], cost: float, path: Path) -> Path:
    """The surrogate losses against beta, the cost they enclose as a line."""
    plt = _pyplot()
    figure, ax = plt.subplots(figsize=(4.8, 3.6), layout="constrained")
    for (name, values), style, colour in zip(curves.items(), ("-", "-", "--"), (LOWERED, RAISED, "black"), strict=True):
        ax.plot(betas, values, style, color=colour, label=name)
    ax.axhline(cost, color="0.5", linewidth=0.9, label="$C$")
    ax.set(xlabel=r"$\beta$", ylabel="mean over the examples", ylim=(0, 4.5 * cost) if cost > 0 else None)
    _finish(ax)
    return _save(figure, path)


def draw_squared_error_example(
    ways: Mapping[str, Sequence[float]], rates: Sequence[float], curves: Mapping[str, Sequence[float]], path: Path
) -> Path:
    """Left: the way each rule takes from theta_0, over contours of |o* - y|^2. Right: |o* - y|^2 after one step."""
    import numpy as np

    plt = _pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 4.0), layout="constrained")
    t1, t2 = np.meshgrid(np.linspace(-0.6, 0.5, 150), np.linspace(-0.95, 0.4, 150))
    levels = [0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4]
    shown = left.contour(t1, t2, (1 + t2) ** 2 + (t1 + 2 * t2) ** 2, levels=levels, colors="0.65", linewidths=0.7)
    at_left = [(-0.5, -(((level - 1.25) / 5) ** 0.5)) for level in (1.5, 2, 3, 4)]
    left.clabel(shown, fontsize=7, fmt="%g", manual=[*at_left, (0.4, -0.05), (0.4, -0.14)])
    for name, (d1, d2) in ways.items():
        colour, aside = (RAISED, (6, 2)) if "CpL" in name else (LOWERED, (6, -8))
        left.annotate("", (0.2 * d1, 0.2 * d2), (0, 0), arrowprops=_way(colour))
        left.annotate(
            name, (0.2 * d1, 0.2 * d2), aside, textcoords="offset points", fontsize=9, color=colour, path_effects=[_halo()]
        )
    left.plot(0, 0, "o", color="black", markersize=5)
    left.annotate(r"$\theta_0$", (0, 0), (-14, 4), textcoords="offset points", fontsize=11)
    left.set(xlabel=r"$\theta_1$", ylabel=r"$\theta_2$", title=r"$\|o_\bigstar - y\|^2$ and the rules' steps, $\eta$ = 0.2")
    for (name, values), style in zip(curves.items(), ("-", "-", "--", "-.", ":"), strict=True):
        right.plot(rates, values, style, color=RAISED if "CpL" in name else LOWERED, label=name)
    dots = rates[::4]
    right.plot(dots, [1 + 2 * r + 10 * r * r for r in dots], "o", color=RAISED, markersize=4, label=r"$1 + 2\eta + 10\eta^2$")
    right.set(xlabel=r"step $\eta$", title=r"$\|o_\bigstar - y\|^2$ after one step")
    _finish(right)
    return _save(figure, path)


def draw_l1_example(ways: dict[str, float], betas: Sequence[float], changes: Sequence[float], rate: float, path: Path) -> Path:
    """Left: L1 and |o* - y|^2 over theta, and the way each rule takes from theta_0. Right: what a step of CpL does to L1."""
    import numpy as np

    plt = _pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 4.0), layout="constrained")
    theta = np.linspace(0, 1.25, 200)
    left.plot(theta, (5 - 4 * theta) * theta**2, color=RAISED, label=r"$\mathcal{L}^{(1)}$")
    left.plot(theta, theta**2, "--", color="0.4", label=r"$\|o_\bigstar - y\|^2$")
    left.axvline(1, color="0.6", linewidth=0.8, linestyle=":")
    for i, (name, way) in enumerate(ways.items()):
        height = 0.36 - 0.06 * i  # under both curves
        left.annotate("", (1 + 0.2 * way, height), (1, height), arrowprops=_way(LOWERED if way > 0 else RAISED))
        left.annotate(name, (1, height), (6 if way < 0 else -6, 0), textcoords="offset points", fontsize=8,
                      ha="left" if way < 0 else "right", va="center")  # fmt: skip
    left.set(xlabel=r"$\theta = o_\bigstar$", title=r"the losses, and steps from $\theta_0$ = 1, $\eta$ = 0.2")
    _finish(left)
    right.plot(betas, [1 - 2 * b for b in betas], color=RAISED, label=r"$1 - 2\beta$")
    right.plot(betas, [1 + 2 * b for b in betas], "--", color="0.6", label=r"$1 + 2\beta$, as the appendix has it")
    right.plot(betas, changes, "o", color="black", markersize=3.5, label=f"measured, $\\eta$ = {rate:g}")
    right.axhline(0, color="0.4", linewidth=0.8)
    right.set(xlabel=r"signed $\beta$", title=r"change of $\mathcal{L}^{(1)}$ in a step of CpL, over $2\eta$")
    _finish(right)
    return _save(figure, path)


def draw_settling(networks: dict[str, dict[str, Course]], path: Path) -> Path:
    """Residual and energy against iterations: a row for each network, a line for each schedule."""
    plt = _pyplot()
    size = (9.4, 3.4 * len(networks))
    figure, axes = plt.subplots(len(networks), 2, figsize=size, layout="constrained", squeeze=False)
    ends = [course.reaches(1e-8) or 0 for found in networks.values() for course in found.values()]
    longest = max(ends) or max(len(course.residual) for found in networks.values() for course in found.values())
    for (title, found), (left, right) in zip(networks.items(), axes, strict=True):
        for i, (name, course) in enumerate(found.items()):
            style = {"color": f"C{i}", "linestyle": ("-", "--", ":")[i // 4 % 3], "linewidth": 1.3, "label": name}
            times = range(1, len(course.residual) + 1)
            left.plot(times, course.residual, **style)
            right.plot(times, [max(e, 1e-9) for e in course.above_limit()], **style)
        shared = {"xlabel": "iteration", "yscale": "log", "xlim": (0, longest)}
        left.set(**shared, ylabel="residual", ylim=(1e-8, 2), title=title)
        right.set(**shared, ylabel="energy above its limit", ylim=(1e-8, None))
        left.grid(alpha=0.3)
        right.grid(alpha=0.3)
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize="small")
    return _save(figure, path)


def _finish(ax: Any) -> None:
    ax.grid(alpha=0.3)
    ax.legend(fontsize="small")


def _way(colour: str) -> dict[str, Any]:
    return {"arrowstyle": "-|>", "linewidth": 1.8, "color": colour, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 12}


def _halo() -> Any:
    from matplotlib.patheffects import withStroke

    return withStroke(linewidth=3, foreground="white")


def _levels() -> list[float]:
    """Of energies that lie closer at the bottom of the valley."""
    return [0.04 * (k + 0.4) ** 2 for k in range(12)]


def _mark(ax: Any, point: Sequence[float], marker: str, size: float, label: str, aside: tuple[float, float] = (0, -15)) -> None:
    ax.plot(*point, marker, color="black", markersize=size, markeredgecolor="white", markeredgewidth=0.6, zorder=3)
    ax.annotate(label, point, aside, textcoords="offset points", ha="center", fontsize=11)


def _force(ax: Any, point: Sequence[float], up: bool) -> None:
    """A thick arrow over a configuration: up where its energy is raised, down where it is lowered."""
    way = {"arrowstyle": "<|-" if up else "-|>", "color": RAISED if up else LOWERED, "linewidth": 3.2}
    way |= {"shrinkA": 0, "shrinkB": 7, "mutation_scale": 15}
    ax.annotate("", point, (0, 34), textcoords="offset points", arrowprops=way, zorder=4)


def _key(ax: Any, beta: float) -> None:
    """What the signs mean, where a panel is free."""
    ax.axis("off")
    ax.set(xlim=(0, 1), ylim=(0, 1))
    lines = [
        ("*", "$o_\\bigstar$: the free output"),
        ("X", "$y$: the target"),
        ("o", f"$o_\\beta$, $o_{{-\\beta}}$: perturbed, $\\beta$ = {beta:g}"),
    ]
    for i, (marker, text) in enumerate(lines):
        ax.plot(0.06, 0.93 - 0.13 * i, marker, color="black", markersize={"*": 12, "X": 7.5, "o": 5.5}[marker])
        ax.text(0.14, 0.93 - 0.13 * i, text, va="center", fontsize=10)
    for i, (up, text) in enumerate([(True, "the rule raises the energy here"), (False, "the rule lowers the energy here")]):
        _force(ax, (0.06, 0.36 - 0.22 * i), up)
        ax.text(0.14, 0.45 - 0.22 * i, text, va="center", fontsize=10, color=RAISED if up else LOWERED)
    ax.annotate("", (0.11, 0.05), (0.01, 0.05), arrowprops=_way("black"))
    ax.text(0.14, 0.05, f"{STRIDE} times the step that $o_\\bigstar$ takes", va="center", fontsize=10)


def _shades() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("change", [LOWERED, "white", RAISED])


def _save(figure: Any, path: Path) -> Path:
    """PNG to look at, PDF to include; the PNG's path."""
    figure.savefig(path.with_suffix(".pdf"))
    figure.savefig(path.with_suffix(".png"), dpi=200)
    _pyplot().close(figure)
    return path.with_suffix(".png")


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
