"""How a report names and prints things."""

from __future__ import annotations

RULES = {  # in the order of the paper's tables
    "tbp": "TBP",
    "rbp": "RBP",
    "cl": "CL",
    "p-ep": "P-EP",
    "n-ep": "N-EP",
    "c-ep": "C-EP",
    "p-cpl": "P-CpL",
    "n-cpl": "N-CpL",
    "c-cpl": "C-CpL",
    "r-ep": "R-EP",
}
BASELINES = ("tbp", "rbp")
DATASETS = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "svhn": "SVHN",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "fashion-mini": "Fashion-MNIST (5,000 images)",
    "kmnist": "KMNIST",
}


def rule_name(rule: str) -> str:
    return RULES.get(rule, rule)


def dataset_name(dataset: str) -> str:
    return DATASETS.get(dataset, dataset)


def order(name: str, known: dict[str, str]) -> tuple[int, str]:
    """A sort key: the paper's order, then by name."""
    return (list(known).index(name) if name in known else len(known), name)


def duration(seconds: float) -> str:
    """As short as it may be: 42 s, 5 min 15 s, 3 h 18 min."""
    s = round(seconds) if seconds >= 10 else round(seconds, 1)
    if s < 60:
        return f"{s:g} s"
    if s < 3600:
        return f"{s // 60:g} min {s % 60:02g} s" if s % 60 else f"{s // 60:g} min"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def signed(value: float) -> str:
    """With two digits and a sign, unless they are zeros."""
    text = f"{value:+.2f}"
    return "0.00" if float(text) == 0 else text.replace("-", "−")


def clock(text: str) -> float:
    """Seconds of H:MM."""
    hours, _, minutes = text.lstrip("~").partition(":")
    return 3600.0 * int(hours) + 60.0 * int(minutes)


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def joined(words: list[str]) -> str:
    """One, two and three."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
