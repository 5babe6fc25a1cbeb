"""CRC-32C (Castagnoli), by the extension module of the library crc32c.

The package of the library imports a command line and reads the metadata of installed packages, which takes a twentieth
of a broker's imports. So this module loads only the package's extension module. If a release of the library has none of
that name, the whole package is imported.
"""

from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING, Any

__all__ = ["crc32c"]


def load(package: str, extension: str) -> Any:
    """Load an extension module of a package without importing the package.

    Args:
        package: the name of the package.
        extension: the name of the module in the package.

    Returns:
        The module; the package if it has no module of this name, or if the module cannot be loaded.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    found = PathFinder.find_spec(package)
    inner = None if found is None else PathFinder.find_spec(extension, found.submodule_search_locations)
    if inner is not None and inner.loader is not None:
        try:
            module = module_from_spec(inner)
            inner.loader.exec_module(module)
        except ImportError:
            pass
        else:
            return module
    return __import__(package)


if TYPE_CHECKING:
    from crc32c import crc32c
else:
    crc32c = load("crc32c", "_crc32c").crc32c
