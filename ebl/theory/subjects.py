"""What the statements are checked on: a small network of ours, a user's energy, a trained network."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ebl.data import load
from ebl.data.batches import Batches
from ebl.data.fingerprint import check_data
from ebl.errors import InputError, choose
from ebl.models.hopfield import DenseHopfield
from ebl.train import load_run

EXAMPLES = 6  # in a batch that nobody gave


@dataclass(frozen=True)
class Subject:
    name: str  # what it is, in words
    net: Any
    x: Tensor
    y: Tensor


def small_network() -> Subject:
    """A Hopfield network with 3 inputs, 6 and 4 hidden units and 2 outputs, coupled weakly enough to have one minimum."""
    net = DenseHopfield((3, 6, 4, 2), gains=(1.5, 1.0, 0.5), seed=6).double()
    with torch.no_grad():
        for bias in net.biases[:-1]:
            bias.fill_(0.3)  # most hidden units between their bounds
    generator = torch.Generator().manual_seed(6)
    x = torch.rand(EXAMPLES, 3, generator=generator, dtype=torch.float64)
    return Subject("a Hopfield network 3-6-4-2", net, x, torch.randint(2, (EXAMPLES,), generator=generator))


def find_subject(spec: str, images: int = 4, seed: int = 0, data_dir: Path | None = None) -> Subject:
    """FILE:Class, or the folder of a run."""
    file, colon, name = spec.rpartition(":")
    if colon and file.endswith(".py"):
        return from_file(Path(file), name, seed)
    if Path(spec).is_dir():
        return from_run(Path(spec), images, data_dir)
    raise InputError(f"--net {spec}: give FILE.py:Class, such as springs.py:Springs, or the folder of an `ebl train`")


@contextlib.contextmanager
def blamed(spec: str | None) -> Iterator[None]:
    """An exception that comes out of a user's file, told in a line."""
    path = Path((spec or "").rpartition(":")[0])
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if not _lines(error, path):
            raise
        raise InputError(f"{spec} fails, {_told(error, path)}: mend it (batches of any size must do)") from error


def from_run(folder: Path, images: int, data_dir: Path | None = None) -> Subject:
    """A trained network, on the first test images."""
    config, net = load_run(folder)
    data = load(config.dataset, data_dir)
    check_data(folder, data)
    if not 0 < images <= len(data.test.labels):
        raise InputError(f"--images {images}: use 1 to {len(data.test.labels)}, the number of test images")
    x, y = next(Batches(data.test, config.entry, images).in_order())
    return Subject(f"the network of {folder}, {config.rule} on {config.dataset}", net, x, y)


def from_file(path: Path, name: str, seed: int = 0) -> Subject:
    """An instance of a class in a Python file, which is executed; its example, or random numbers of shapes that fit."""
    if not path.is_file():
        raise InputError(f"{path} does not exist: give FILE.py:Class, such as springs.py:Springs")
    named = vars(_execute(path))
    if inspect.isclass(named.get(name)) and not issubclass(named[name], nn.Module):
        raise InputError(f"{path}:{name} is no torch.nn.Module: derive it from that, with its parameters as torch.nn.Parameter")
    classes = {k: v for k, v in named.items() if inspect.isclass(v) and issubclass(v, nn.Module)}
    kind = classes[choose(f"class in {path}", name, classes)] if classes else None
    if kind is None:
        raise InputError(f"{path} defines no torch.nn.Module: write the energy as one (see `ebl theory --help`)")
    torch.manual_seed(seed)
    try:
        net = kind()
    except Exception as error:
        raise InputError(f"{path}:{name}() fails, {_told(error, path)}: it must be made without arguments") from error
    for method in ("init_state", "energy"):
        if not callable(getattr(net, method, None)):
            raise InputError(f"{path}:{name} has no method {method}: an energy needs init_state(x) and energy(x, state)")
    return _with_example(f"{name} of {path}", net.double().eval(), path, seed)


def _with_example(name: str, net: Any, path: Path, seed: int) -> Subject:
    given = getattr(net, "example", None)
    if given is not None:
        try:
            x, y = given() if callable(given) else given
            x, y = torch.as_tensor(x), torch.as_tensor(y)
        except Exception as error:
            raise InputError(f"the example of {name} fails, {_told(error, path)}: let example() return (x, y)") from error
        try:
            _try(name, net, x)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{name} fails on its own example, {_told(error, path)}: mend one or the other") from error
        return Subject(f"{name}, its own example", net, x, y)
    generator = torch.Generator().manual_seed(seed)
    last: Exception | None = None
    for shape in _shapes(net):
        x = torch.rand((EXAMPLES, *shape), generator=generator, dtype=torch.float64)
        try:
            output = _try(name, net, x)
        except InputError:
            raise
        except Exception as error:
            last = error
            continue
        y = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        shapes = f"x random in [0, 1], {tuple(x.shape)}; y random normal, {tuple(y.shape)}"
        return Subject(f"{name}; {shapes}", net, x, y)
    why = f", {_told(last, path)}" if last else ""
    raise InputError(f"no shape of x was found that {name} takes{why}: give it a method example() that returns (x, y)")


def _shapes(net: Any) -> Iterator[tuple[int, ...]]:
    """Guesses of an input's shape: what the network says, then sizes of its parameters, then one number."""
    if hasattr(net, "input_shape"):
        yield tuple(net.input_shape)
    sizes = [n for p in net.parameters() for n in p.shape]
    for size in dict.fromkeys([*sizes, 1]):
        yield (size,)


def _try(name: str, net: Any, x: Tensor) -> Tensor:
    """The output block of the start; an error where the energy does not take this input."""
    x = x.double() if x.is_floating_point() else x
    state = net.init_state(x)
    if not isinstance(state, tuple) or not all(isinstance(s, Tensor) and len(s) == len(x) for s in state):
        raise InputError(f"init_state of {name} must give a tuple of blocks, (B, ...) each, the output last")
    wrong = next((s.dtype for s in state if s.dtype != torch.float64), None)
    if wrong is not None:
        raise InputError(f"init_state of {name} gives {wrong} where x and the parameters are float64: use x.new_zeros")
    with torch.enable_grad():
        at = tuple(s.detach().requires_grad_() for s in state)
        e = net.energy(x, at)
    if e.shape != (len(x),):
        raise InputError(f"energy of {name} has shape {tuple(e.shape)} for {len(x)} examples: return one number for each, (B,)")
    bad = e.detach()[~e.isfinite()]
    if len(bad):
        raise InputError(f"energy of {name} is {float(bad[0])} at its init_state: start where it is a finite number")
    slopes = torch.autograd.grad(e.sum(), at, allow_unused=True) if e.requires_grad else (None,)
    if all(g is None for g in slopes):
        raise InputError(f"energy of {name} does not depend on the state for autograd: use no detach, no_grad or numpy in it")
    return state[-1]


def _execute(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"_net_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))  # as for a script
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path} cannot be executed, {_told(error, path)}: mend it") from error
    finally:
        sys.path.pop(0)
    return module


def _told(error: Exception, path: Path) -> str:
    """The error in a line, with the place in the user's file."""
    lines = _lines(error, path)
    return f"{f'line {lines[-1]}: ' if lines else ''}{type(error).__name__}: {' '.join(str(error).split())}"


def _lines(error: Exception, path: Path) -> list[int | None]:
    frames = traceback.extract_tb(error.__traceback__)
    return [f.lineno for f in frames if Path(f.filename).resolve() == path.resolve()]
