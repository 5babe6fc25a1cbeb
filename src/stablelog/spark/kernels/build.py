"""Compilation of kernels (the loops over records) by Numba into machine code that runs without Numba.

A kernel takes pointers to arrays of 64-bit integers, returns one integer, makes no Python object and raises nothing.
Its machine code therefore calls neither Numba nor Python, so that other processes can run the code without importing
Numba. `build` checks that the code calls only `memcpy` and similar functions.
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
    """Decorate a function that kernels (the compiled functions) call, and return it in a form that Numba inlines: its
    code is compiled into each of these kernels.
    """
    part: Part = _numba.njit(error_model="numpy")(function)
    return part


def names_in(module_name: str) -> list[str]:
    """Return the names of a module's kernels, the functions that Numba compiles."""
    return list(importlib.import_module(module_name).KERNELS)


def build(module_name: str) -> dict[str, bytes]:
    """Compile the functions in a module's list KERNELS to machine code. Return, by name, an object file for each
    kernel. The kernel's symbol in the object file is its name.

    Raises:
        RuntimeError: the code calls a function of Numba, for example because the kernel makes a Python object.
    """
    module = importlib.import_module(module_name)
    return {name: object_of(name, *what) for name, what in module.KERNELS.items()}


def object_of(name: str, function: Callable[..., int], argument_count: int) -> bytes:
    """Compile one kernel (a function that Numba translates to machine code), and return its object file. Raise
    RuntimeError if the code calls a function of Numba.
    """
    signature = _numba.int64(*[POINTER] * argument_count)
    compiled = _numba.cfunc(signature, error_model="numpy")(function)
    code = binding.parse_assembly(compiled.inspect_llvm())
    for found in code.functions:
        if found.name == compiled.native_name:
            found.name = name
        elif not found.is_declaration:
            # With internal linkage, the optimiser removes functions that are never called, such as those that raise
            # errors.
            found.linkage = "internal"
    machine = native_machine()
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(code, builder)
    asked = {found.name for found in code.functions if found.is_declaration} - ALLOWED
    strangers = sorted(asked_name for asked_name in asked if not asked_name.startswith("llvm."))
    if strangers:
        raise RuntimeError(
            f"the kernel {name} calls {', '.join(strangers)}: a kernel must not call Python or Numba"
        )
    return bytes(machine.emit_object(code))
