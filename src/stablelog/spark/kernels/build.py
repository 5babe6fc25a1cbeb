"""Compilation of kernels: Numba makes machine code that runs without Numba.

A kernel takes pointers to arrays of 64-bit integers, returns one integer, makes no Python object and raises nothing.
Its machine code therefore needs neither Numba nor Python, and other processes run it without importing Numba. `build`
checks this: the code may call only `memcpy` and similar functions.
"""

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import numba
from llvmlite import binding

from stablelog.spark.kernels.machine import native_machine
from stablelog.spark.kernels.memory import POINTER

Part = TypeVar("Part", bound=Callable[..., Any])

_numba: Any = numba
ALLOWED = frozenset({"memcpy", "memmove", "memset"})


def inlined(function: Part) -> Part:
    """Mark a part of kernels: it is compiled into each kernel that calls it."""
    part: Part = _numba.njit(error_model="numpy")(function)
    return part


def names_in(module_name: str) -> list[str]:
    """The names of a module's kernels."""
    return list(importlib.import_module(module_name).KERNELS)


def build(module_name: str) -> dict[str, bytes]:
    """Compile a module's KERNELS; return an object file for each, in which the kernel has its own name.

    Raises:
        RuntimeError: the code calls a function of Numba, so the kernel does something that it must not do.
    """
    module = importlib.import_module(module_name)
    return {name: object_of(name, *what) for name, what in module.KERNELS.items()}


def object_of(name: str, function: Callable[..., int], argument_count: int) -> bytes:
    """Compile one kernel; return its object file. Raises the error of `build`."""
    signature = _numba.int64(*[POINTER] * argument_count)
    compiled = _numba.cfunc(signature, error_model="numpy")(function)
    code = binding.parse_assembly(compiled.inspect_llvm())
    for found in code.functions:
        if found.name == compiled.native_name:
            found.name = name
        elif not found.is_declaration:
            # The linker then drops code that is never reached, such as the code that raises errors.
            found.linkage = "internal"
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
