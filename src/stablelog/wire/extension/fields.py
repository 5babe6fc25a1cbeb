"""Base classes and field types of the messages of stablelog's own APIs, as the message library kio expects them."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final

from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.static.constants import EntityType
from kio.static.primitive import i16

BOOL: Final = MappingProxyType({"kafka_type": "bool"})
INT16: Final = MappingProxyType({"kafka_type": "int16"})
INT32: Final = MappingProxyType({"kafka_type": "int32"})
INT64: Final = MappingProxyType({"kafka_type": "int64"})
STRING: Final = MappingProxyType({"kafka_type": "string"})
UUID: Final = MappingProxyType({"kafka_type": "uuid"})
ERROR: Final = MappingProxyType({"kafka_type": "error_code"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Nested:
    """Base class for structures inside a message of stablelog's own APIs, such as one partition of a response."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionRequest(Nested):
    """Base class for requests of stablelog's own APIs."""

    __type__: ClassVar = EntityType.request
    __header_schema__: ClassVar = RequestHeader
    __api_key__: ClassVar[i16]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionResponse(Nested):
    """Base class for responses of stablelog's own APIs."""

    __type__: ClassVar = EntityType.response
    __header_schema__: ClassVar = ResponseHeader
