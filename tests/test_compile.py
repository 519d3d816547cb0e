"""The kernels compile for GPUs on any machine: Gluon's for sm_90, Triton's for sm_80, the readout for both."""

import json
import os
import subprocess
import sys

import pytest

triton = pytest.importorskip("triton")

if not triton.__version__.startswith("3.6."):  # Gluon's interface, and the compiler's, still move
    pytest.skip(f"Triton {triton.__version__} is not 3.6", allow_module_level=True)

GLUON = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from ebl.engine import hopper
from ebl.engine.deviation import LEAST, LIMIT, SCALE

BOX, MATRIX = gl.NVMMASharedLayout(128, 16, 4), gl.NVMMASharedLayout(128, 16, 2)

def compiled(kernel, arguments, constants, warps):
    signature = arguments | dict.fromkeys(constants, "constexpr")
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind.startswith("*")}
    source = GluonASTSource(kernel, signature, constants, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    print(json.dumps({"cubin": len(made.asm["cubin"]), "shared": made.metadata.shared, "wgmma": "wgmma" in made.asm["ptx"]}))

def descriptors(pairs, width, channels, down):
    weights = f"64,{channels}" if down else f"{channels},64"
    box = f"tensordesc<fp16[4,{pairs // width},{width},64],{BOX!r}>"
    return {"xd": box, "wd": f"tensordesc<fp16[{weights}],{MATRIX!r}>"}

def shapes(size, below, above, down, warps, channels, boxes, weights):
    pairs = 16 * warps
    width = min(size & -size, pairs)
    cin, n = (above, below) if down else (below, above)
    constants = dict(HO=size, WO=size, CIN=cin, N=n, C=below, K=3, PAD=1, DOWN=down, ROWS=above, HALVES=1)
    return width, constants, dict(BB=pairs // width, WW=width, BN=channels, SA=boxes, SW=weights)

def conv(size, below, above, mode, down, warps, channels, boxes, weights, t="*fp32", parts=1, average=False,
         watch=False, update=True, halves=1):
    width, constants, tiles = shapes(size, below, above, down, warps, channels, boxes, weights)
    arguments = descriptors(16 * warps, width, channels, down) | {
        "t": t, "bias": "*fp32", "hi": "*fp16", "lo": "*fp16", "u": "*fp16", "omega": "*fp32", "gaps": "*fp32", "B": "i32"
    }
    constants |= dict(MODE=mode, AVERAGE=average, NUM_T=int(mode > 0), BIAS=mode == 2, UPDATE=update, WATCH=watch, SPLIT=parts)
    constants |= dict(HALVES=halves)
    compiled(hopper.conv_kernel, arguments, constants | tiles, warps)

def deviation(size, below, above, pools, down, warps, channels, boxes, weights, rest, average=False):
    width, constants, tiles = shapes(size, below, above, down, warps, channels, boxes, weights)
    halves = dict.fromkeys(("hi", "lo", "slack", "d"), "*fp16")
    arguments = descriptors(16 * warps, width, channels, down) | halves | {
        "t": "*fp32", "bias": "*fp32", "omega": "*fp32", "behind": "*fp16", "u": "*fp16", "du": "*fp16",
        "B": "i32", "BASE": "i32",
    }
    constants |= dict(POOLS=pools, AVERAGE=average, NUM_T=int(pools), BIAS=rest and pools, UPDATE=not rest, REST=rest)
    constants |= dict(SCALE=SCALE, LIMIT=LIMIT, LEAST=LEAST, HALVES=1 + rest)
    compiled(hopper.deviation_kernel, arguments, constants | tiles, warps)

def weight(size, warps):
    width = min(size & -size, 64)
    height, rows = 64 // width, 32 * warps
    pair = {name: f"tensordesc<fp16[1,{height},{width},{n}],{BOX!r}>" for name, n in (("gd", rows), ("xd", 128))}
    constants = dict(HO=size, WO=size, K=3, PAD=1, BB=height, WW=width, BM=rows, BN=128, S=3)
    compiled(hopper.weight_kernel, pair | {"out": "*fp32", "chunks": "i32", "N": "i32", "C": "i32"}, constants, warps)

exec(sys.argv[1])
"""
TRITON = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ebl.engine.deviation import LEAST, LIMIT, SCALE, _deviation_kernel
from ebl.engine.kernels import _update_kernel
from ebl.engine.readout import _readout_kernel

HALVES = ("x", "w", "hi", "lo", "slack", "d", "behind", "u", "du")
SHAPE = dict(CIN=128, N=256, PER_TAP=128, K=3, PAD=1)

def compiled(kernel, t="*fp16", halves=HALVES, unaligned=("omega",), capabilities=(80,), **constants):
    signature, aligned = {}, {}
    for i, name in enumerate(kernel.arg_names):
        kind = "*fp16" if name in halves else t if name == "t" else "*fp32"
        kind = "i32" if name in ("B", "BASE", "HI", "WI", "HO", "WO") else kind
        signature[name] = "constexpr" if name in constants else kind
        if signature[name].startswith("*") and name not in unaligned:
            aligned[i,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(name),): v for name, v in constants.items()}, aligned)
    for capability in capabilities:
        made = triton.compile(source, target=GPUTarget("cuda", capability, 32))
        print(json.dumps({"cubin": len(made.asm["cubin"]), "mma": "mma" in made.asm["ptx"], "shared": made.metadata.shared}))

def update(mode, average=False, moves=True):
    how = dict(MODE=mode, AVERAGE=average, NUM_T=int(mode > 0), BIAS=mode == 2, UPDATE=moves, WATCH=moves and mode > 0)
    compiled(_update_kernel, **SHAPE, HALVES=1, DOWN=False, **how, BM=64, BN=64, BK=32)

def deviation(pools, rest, average=False):
    how = dict(POOLS=pools, AVERAGE=average, NUM_T=1, BIAS=rest and pools, UPDATE=not rest, REST=rest, HALVES=1 + rest)
    scales = dict(SCALE=SCALE, LIMIT=LIMIT, LEAST=LEAST)
    compiled(_deviation_kernel, "*fp32" if rest else "*fp16", **SHAPE, DOWN=not pools, **how, **scales, BM=32, BN=64, BK=32)

def readout(moves, nudged, each, unaligned=()):
    shape = dict(UNITS=2048, BLOCK=2048, CLASSES=10, CBLOCK=16, UNIT=1 / SCALE)
    how = dict(MOVES=moves, NUDGED=nudged, AWAY=nudged, EACH=each)
    compiled(_readout_kernel, halves=("hi", "rest"), unaligned=("omega", *unaligned), capabilities=(80, 90), **shape, **how)

exec(sys.argv[1])
"""
TWO_ON_A_UNIT, ONE_ON_A_UNIT = 228 * 1024 // 2 - 1024, 227 * 1024  # bytes of shared memory a program may take


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "most"),
    [
        ("conv(16, 128, 256, 2, False, 8, 128, 2, 4, t='*fp16', watch=True)", ONE_ON_A_UNIT),
        ("conv(16, 128, 256, 1, True, 4, 128, 2, 3, t='*fp16')", TWO_ON_A_UNIT),
        ("conv(8, 256, 512, 0, True, 4, 128, 3, 4, t='*fp16', parts=2)", ONE_ON_A_UNIT),
        ("conv(4, 512, 512, 2, False, 4, 64, 3, 8, average=True)", ONE_ON_A_UNIT),
        ("conv(8, 256, 512, 0, True, 4, 128, 3, 4, halves=2)", ONE_ON_A_UNIT),
        ("conv(8, 24, 40, 2, False, 4, 64, 2, 3, update=False)", TWO_ON_A_UNIT),
        ("deviation(16, 128, 256, True, False, 4, 128, 2, 3, rest=False)", TWO_ON_A_UNIT),
        ("deviation(16, 128, 256, True, False, 4, 128, 2, 3, rest=True)", TWO_ON_A_UNIT),
        ("deviation(16, 128, 256, False, True, 4, 128, 2, 3, rest=False)", TWO_ON_A_UNIT),
        ("deviation(4, 512, 512, True, False, 4, 64, 3, 8, rest=True, average=True)", ONE_ON_A_UNIT),
        ("weight(16, 4)", TWO_ON_A_UNIT),
        ("weight(8, 8)", ONE_ON_A_UNIT),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_the_hopper_kernels_compile_and_fit_into_shared_memory(tmp_path, call, most):
    (made,) = compiled(GLUON, call, tmp_path)
    assert made["cubin"] > 0
    assert made["wgmma"]
    assert made["shared"] <= most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "calls", "product"),
    [
        ("update", ("(0)", "(1)", "(2)", "(2, average=True)", "(2, moves=False)"), True),
        ("deviation", ("(True, False)", "(True, True)", "(False, True)", "(True, False, average=True)"), True),
        ("readout", ("(False, False, False)", "(True, True, False, ('output', 'bias'))", "(True, False, True)"), False),
    ],
)
def test_the_triton_kernels_compile_for_gpus_before_and_after_hopper(tmp_path, kernel, calls, product):
    found = compiled(TRITON, "; ".join(kernel + call for call in calls), tmp_path)
    assert len(found) in (len(calls), 2 * len(calls))
    for made in found:
        assert made["cubin"] > 0
        assert made["mma"] is product
        assert made["shared"] <= 99 * 1024  # what a program may take on GPUs of consumers


def compiled(script, call, cache):
    """In a process of its own, since the interpreter cannot be left; with no cache, so that something is compiled."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    done = subprocess.run([sys.executable, "-c", script, call], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
