"""The processor for which kernels are compiled."""

from typing import Any

from llvmlite import binding


def native_machine() -> Any:
    """Return LLVM's description of this machine's processor."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=3,
        jit=True,
    )
