"""The JSON parser for texts that other programs or users may have written: files, objects of a store, messages. Every
invalid text raises ValueError.

Other modules do not call `json.loads` directly. It raises RecursionError for deep nesting, and accepts numbers that
JSON does not have, such as `Infinity`, which raise OverflowError when they are converted to an integer.
"""

import json
import math
from collections.abc import Callable
from typing import Any, NoReturn


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


def parse_json(
    text: str | bytes | bytearray, *, pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Return the value of a JSON text.

    Args:
        text: the text.
        pairs_hook: called for each JSON object with its pairs of key and value, in their order. It returns the value
            that stands for the object. None to return a dict.

    Raises:
        ValueError: the text is not valid JSON, has a number that is not finite, or is nested too deeply to be read.
    """
    try:
        return json.loads(
            text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=pairs_hook
        )
    except RecursionError:
        raise ValueError("the text is nested too deeply") from None
