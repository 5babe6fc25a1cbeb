"""How kernels are compiled: by Numba, to machine code that stands alone.

A kernel takes pointers to arrays of 64-bit integers, returns one, makes no Python object and raises nothing. So its
machine code needs nothing of Numba or Python once it is made: it is taken out, and other processes run it without
importing Numba. That this is so is checked: all that the code may still ask for is `memcpy` and its like.
"""

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import numba
from llvmlite import binding

from stablelog.spark.kernels.cache import native_machine
from stablelog.spark.kernels.memory import POINTER

Part = TypeVar("Part", bound=Callable[..., Any])

_numba: Any = numba
ALLOWED = frozenset({"memcpy", "memmove", "memset"})


def inlined(function: Part) -> Part:
    """A part of kernels: compiled into each that calls it."""
    part: Part = _numba.njit(error_model="numpy")(function)
    return part


def names_in(module_name: str) -> list[str]:
    """The names of a module's kernels."""
    return list(importlib.import_module(module_name).KERNELS)


def build(module_name: str) -> dict[str, bytes]:
    """The machine code of each of a module's KERNELS, as object files in which it has its own name.

    Raises:
        RuntimeError: the code asks for something that only Numba has: a kernel does what it must not.
    """
    module = importlib.import_module(module_name)
    return {name: _object_of(name, *what) for name, what in module.KERNELS.items()}


def _object_of(name: str, function: Callable[..., int], argument_count: int) -> bytes:
    signature = _numba.int64(*[POINTER] * argument_count)
    compiled = _numba.cfunc(signature, error_model="numpy")(function)
    code = binding.parse_assembly(compiled.inspect_llvm())
    for found in code.functions:
        if found.name == compiled.native_name:
            found.name = name
        elif not found.is_declaration:
            found.linkage = "internal"  # so that what is never reached, the raising of errors, is left out
    machine = native_machine()
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(code, builder)
    asked = {found.name for found in code.functions if found.is_declaration} - ALLOWED
    strangers = sorted(asked_name for asked_name in asked if not asked_name.startswith("llvm."))
    if strangers:
        raise RuntimeError(
            f"the kernel {name} needs {', '.join(strangers)}: it must need nothing of Python or Numba"
        )
    return bytes(machine.emit_object(code))
