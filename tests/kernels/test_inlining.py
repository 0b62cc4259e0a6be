from __future__ import annotations

import gc
import json
import os
import pickle
import subprocess
import sys
from collections import Counter

import dask.config
import numba
import numpy as np
import pytest
from numba.core import codegen
from numba.core.compiler_lock import global_compiler_lock

from largek_dask.driver.compile_watch import FUNCTIONS_MANY
from largek_dask.kernels import inlining
from largek_dask.kernels.code_cache import cache_folder
from largek_dask.kernels.inlining import KIND, InternalLibrary
from largek_dask.kernels.jit import njit

# Fits, and prints the functions that numba has compiled, with the types of their arguments.
FIT = """
import json, sys
import numpy as np
import largek_dask as lk
from numba.core import event
from largek_dask.driver import fit
from largek_dask.kernels.parallel_compile import calls_in_reverse

class Compiled(event.Listener):
    def __init__(self):
        self.found = []

    def on_start(self, event):
        function = event.data["dispatcher"].py_func
        name = f"{function.__module__}.{function.__qualname__}"
        self.found.append((name, [str(kind) for kind in event.data["args"]]))

    def on_end(self, event):
        pass

compiled = Compiled()
event.register("numba:compile", compiled)
fit.is_worth_it = lambda *given: False  # all in this process
rows = np.random.default_rng(0).random((20_000, 8), dtype=np.float32)
parts = []
for k in (300, 8):
    lk.KMeans(k, random_state=0).fit(rows)
    parts.append(compiled.found)
    compiled.found = []
for k in (300, 8):
    for compile_one in calls_in_reverse("float32", 8, k).values():
        compile_one()
parts.append(compiled.found)
print(json.dumps(parts))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache; kernels are compiled even with NUMBA_DISABLE_JIT=1."""
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 0)
    with dask.config.set({"largek.kernels.cache-dir": str(tmp_path)}):
        yield cache_folder()


@pytest.fixture
def emitted(monkeypatch):
    """The first function of each library for which machine code is generated."""
    names = []
    real = codegen.JITCodeLibrary._finalize_specific

    def counting(library):
        defined = (f.name for f in library._final_module.functions if not f.is_declaration)
        names.extend(list(defined)[:1])  # none if it was loaded
        real(library)

    monkeypatch.setattr(codegen.JITCodeLibrary, "_finalize_specific", counting)
    return names


def refuse(x, least):
    if x < least:
        raise ValueError("too small")
    return np.sqrt(x) * 2


def entered(inner):
    @njit
    def kernel(x, least):
        return inner(x, least) + inner(x + 1, least)

    return kernel


def internal(function):
    return njit(internal=True)(function)


def misses(kernel):
    return sum(kernel.stats.cache_misses.values())


def test_only_kernels_called_from_python_become_machine_code(folder, emitted):
    inner = internal(refuse)
    kernel = entered(inner)
    assert kernel(4.0, 0.0) == 4.0 + np.sqrt(5.0) * 2
    assert misses(inner) == misses(kernel) == 1
    assert sum("refuse" in name for name in emitted) == 0
    assert sum("kernel" in name for name in emitted) == 1
    [compiled] = inner.overloads.values()
    assert isinstance(compiled.library, InternalLibrary)
    kinds = {pickle.loads(p.read_bytes())[1][0][1] for p in folder.glob("*.refuse-*.bin")}
    assert kinds == {KIND}


def test_saved_code_of_both_sorts_is_used(folder, emitted):
    entered(internal(refuse))(4.0, 0.0)
    emitted.clear()
    inner = internal(refuse)

    @njit
    def other(x):
        return inner(x, 1.0)

    assert other(4.0) == 4.0
    assert misses(inner) == 0
    assert misses(other) == 1
    again = entered(inner)
    assert again(4.0, 0.0) == 4.0 + np.sqrt(5.0) * 2
    assert misses(again) == 0
    assert sum("refuse" in name for name in emitted) == 0


@pytest.mark.parametrize("saved", [False, True])
def test_errors_of_internal_kernels(folder, saved):
    for _ in range(1 + saved):
        kernel = entered(internal(refuse))
        with pytest.raises(ValueError, match="too small"):
            kernel(1.0, 2.0)
    assert misses(kernel) == (0 if saved else 1)


def test_a_constant_argument_needs_no_code_of_its_own(folder):
    inner = internal(refuse)

    @njit
    def kernel(n):
        return inner(4, 0) + inner(4, n) + inner(x=n, least=1)

    assert kernel(4) == 12.0
    assert misses(inner) == 1


def taking(table, line, mask, at, by, small):
    total = table[at, by] + table[-1, by] + line[at - 9] + line[small] + line[np.uint64(2)]
    if mask[at]:
        total += table[at][by]
    return total


def putting(table, line, whole, mask, at, value):
    table[at, -1] = 3
    line[at] = value
    line[-at] = at > 1
    whole[at] = 2.75
    mask[at] = value > 0
    table[0] = line[:3]


@pytest.mark.parametrize("order", ["C", "F", "A"])
def test_items_are_taken_and_put_as_numpy_does(folder, order):
    def made():
        table = np.asarray(np.arange(12.0, dtype=np.float32).reshape(4, 3), order=order)
        line = np.arange(10.0) / 3
        if order == "A":
            table, line = np.repeat(table, 2, axis=1)[:, ::2], np.repeat(line, 2)[::2]
        return table, line, np.arange(5, dtype=np.int16), np.array([False, True, True])

    table, line, _, mask = made()
    for at in (np.int64(2), np.int8(2), np.uint32(2)):
        given = table, line, mask, np.int64(at), at, np.int8(-3)
        assert njit(taking)(*given) == taking(*given)
    for given, expected in [(made(), made())]:
        njit(putting)(*given, 2, np.float64(0.1))
        putting(*expected, 2, np.float64(0.1))
        for found, wanted in zip(given, expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_resolved_calls_are_cached(folder, monkeypatch):
    asked = []
    real = numba.core.typing.context.BaseContext.resolve_function_type

    def asking(context, function, args, kws):
        asked.append((str(function), tuple(map(str, args))))
        return real(context, function, args, kws)

    monkeypatch.setattr(inlining, "_known_calls", {})
    monkeypatch.setattr(numba.core.typing.context.BaseContext, "resolve_function_type", asking)

    @njit
    def kernel(a, b):
        return (a * b) * (a * b) + b * a

    assert kernel(1.5, 2.0) == 12.0
    assert sum("mul" in name for name, _ in asked) == 1


def test_a_function_that_calls_itself(folder):
    @njit(internal=True)
    def down(n):
        return 0 if n == 0 else 1 + down(n - 1)

    @njit
    def kernel(n):
        return down(n)

    assert kernel(5) == 5
    assert njit(kernel.py_func)(5) == 5


@pytest.mark.slow
@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
def test_a_first_fit_compiles_each_function_for_few_types(tmp_path):
    """More functions cost compile time, which ``benchmarks.start`` measures."""
    # The same tile on every processor, since each tile has other functions.
    environment = os.environ | {
        "DASK_LARGEK__KERNELS__CACHE_DIR": str(tmp_path),
        "DASK_LARGEK__KERNELS__TILE": "plain",
    }
    done = subprocess.run(
        [sys.executable, "-c", FIT], env=environment, check=True, capture_output=True, text=True
    )
    many, _, ahead = json.loads(done.stdout)
    # a second process compiles only what the fit needs
    assert ahead == []
    found = [(name, tuple(kinds)) for name, kinds in many]
    ours = [(name, kinds) for name, kinds in found if name.startswith("largek_dask.")]
    assert "largek_dask.kernels.exact.scan.scan_floats" in dict(ours)
    # nothing of numba's that is as large as a kernel
    assert not [name for name, _ in found if "sort" in name and name.startswith("numba.")]
    assert not [kinds for _, kinds in ours if "Literal" in str(kinds)]
    assert len(set(ours)) == len(ours)
    twice = Counter(name for name, _ in ours)
    assert max(twice.values()) <= 2, twice.most_common(8)
    assert sum(count - 1 for count in twice.values()) <= 6, twice.most_common(8)
    # the number that progress lines assume
    assert abs(len(ours) - FUNCTIONS_MANY) <= 6


def test_the_garbage_collector_is_off_during_compilation(folder, monkeypatch):
    collects = []
    real = inlining.compiler.Compiler.compile_extra

    def looking(compiler, function):
        collects.append(gc.isenabled())
        return real(compiler, function)

    monkeypatch.setattr(inlining.compiler.Compiler, "compile_extra", looking)
    # Threads of other tests may compile, too.
    with global_compiler_lock:
        assert gc.isenabled()
        entered(internal(refuse))(4.0, 0.0)
        assert collects == [False, False]
        assert gc.isenabled()
        with pytest.raises(numba.TypingError):
            njit(lambda x: x + "a")(1.0)
        assert gc.isenabled()
        gc.disable()
        try:
            njit(lambda x: x + 1)(1.0)
            assert not gc.isenabled()
        finally:
            gc.enable()


def test_flags_differ_from_other_objects():
    assert inlining.Flags() == inlining.Flags()
    assert inlining.Flags() != "flags"
