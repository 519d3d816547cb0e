"""The layers' streams without a GPU: what one stream writes, another one touches only after it has waited for that.

Streams and events are stand-ins that know what they waited for; PyTorch tells of every operation on the kernels' definitions.
"""

import contextlib
from dataclasses import dataclass, field, replace

import pytest
import torch
from test_engine import DEEP
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ebl.config import build_network
from ebl.engine.step import FusedStep
from ebl.relax import Schedule


@dataclass(eq=False)
class Stream:
    """Or an event: `done` holds, by stream, how many of its operations have ended when the next one here begins."""

    done: dict["Stream", int] = field(default_factory=dict)

    def wait_stream(self, other: "Stream") -> None:
        self.done |= {stream: max(n, self.done.get(stream, 0)) for stream, n in other.done.items()}

    wait_event = wait_stream


class Accesses(TorchDispatchMode):
    """Every operation's, on the stream that is current; `clashes` are those of two streams that did not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.current = [Stream()]
        self.seen: dict[int, list[tuple[bool, int, int, Stream, int, str]]] = {}
        self.kept: list[object] = []  # nothing is freed, so that no place in memory stands for two things
        self.clashes: set[tuple[str, str]] = set()
        self.streams: set[Stream] = set()

    @contextlib.contextmanager
    def on(self, stream: Stream):
        self.current.append(stream)
        yield
        self.current.pop()

    def event(self) -> Stream:
        event = Stream()
        event.record = lambda: event.wait_stream(self.current[-1])
        return event

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        returned = operation(*args, **kwargs)
        self.kept.append((args, kwargs, returned))
        stream = self.current[-1]
        stream.done[stream] = stream.done.get(stream, 0) + 1
        self.streams.add(stream)
        schema = operation._schema
        if any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns):
            return returned  # a view: nothing happens
        given = {a.name: args[i] if i < len(args) else kwargs.get(a.name) for i, a in enumerate(schema.arguments)}
        changed = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        read = [value for name, value in given.items() if name not in changed]
        for writes, values in ((False, read), (True, [given[name] for name in changed] or [returned])):
            for t in tree_leaves(values):
                if isinstance(t, Tensor) and t.numel():
                    self.access(writes, t, stream, str(operation))
        return returned

    def access(self, writes: bool, t: Tensor, stream: Stream, name: str) -> None:
        first = t.storage_offset() * t.element_size()
        end = first + (1 + sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))) * t.element_size()
        before = self.seen.setdefault(t.untyped_storage().data_ptr(), [])
        for wrote, other_first, other_end, other, place, what in before:
            meet = (writes or wrote) and first < other_end and other_first < end
            if meet and other is not stream and stream.done.get(other, 0) < place:
                self.clashes.add((what, name))
        before.append((writes, first, end, stream, stream.done[stream], name))


@pytest.mark.parametrize("order", ["odd-first", "even-first"])
@pytest.mark.parametrize("rule", ["c-ep", "cl", "tbp", "rbp"])
def test_no_stream_touches_what_another_one_may_be_writing(rule, order, monkeypatch):
    accesses = Accesses()
    monkeypatch.setattr("torch.cuda.current_stream", lambda *_: accesses.current[-1])
    monkeypatch.setattr("torch.cuda.stream", accesses.on)
    monkeypatch.setattr("torch.cuda.Event", accesses.event)
    schedules = {"free": Schedule(3, 1.4, order), "nudged": Schedule(3, 1.2, order)}
    config = replace(DEEP, batch_size=2, rule=rule, beta=None, start="carry", **schedules)
    net = build_network(config)
    step = FusedStep(config, net, torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9))
    step.fused.sides = [Stream() for _ in range(step.fused.num_hidden + 2)]
    x, y = torch.randn(2, *config.input_shape), torch.tensor([3, 8])
    with accesses:
        for _ in range(2):
            step.step(x, y, 3, torch.Generator())
    assert len(accesses.streams) == len(net.links) + 2  # each layer's, the main one, and one for the sums
    assert not accesses.clashes
