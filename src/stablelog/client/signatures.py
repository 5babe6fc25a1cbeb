"""The signature that `help` shows for a call of the client: the result of the call, and not its steps."""

import inspect
from collections.abc import Callable
from typing import Any, get_args


def show_result(call: Callable[..., Any], steps: Callable[..., Any]) -> None:
    """Give a call the signature of the function that returns its steps, with the result of the steps.

    Args:
        call: the function or method that runs the steps.
        steps: the function; its return annotation is `Steps[...]`.
    """
    signature = inspect.signature(steps)
    (*_, result) = get_args(signature.return_annotation)
    vars(call)["__signature__"] = signature.replace(return_annotation=result)
