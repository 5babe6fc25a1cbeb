"""The field types of the extension messages, as kio reads and writes them."""

from types import MappingProxyType
from typing import Final

BOOL: Final = MappingProxyType({"kafka_type": "bool"})
INT16: Final = MappingProxyType({"kafka_type": "int16"})
INT32: Final = MappingProxyType({"kafka_type": "int32"})
INT64: Final = MappingProxyType({"kafka_type": "int64"})
STRING: Final = MappingProxyType({"kafka_type": "string"})
UUID: Final = MappingProxyType({"kafka_type": "uuid"})
ERROR: Final = MappingProxyType({"kafka_type": "error_code"})
