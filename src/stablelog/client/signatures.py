"""The signature that `help` shows for a method of the client. A method runs steps, a generator of I/O operations; the
signature names the result of the steps and not the generator.
"""

import inspect
from collections.abc import Callable
from typing import Any, get_args


def show_result(call: Callable[..., Any], steps: Callable[..., Any]) -> None:
    """Give a method the signature of the function that returns its steps (a generator of I/O operations), but with the
    type of their result as the return type.

    Args:
        call: the method or function that runs the steps.
        steps: the function that returns the steps. Its return annotation is `Steps[...]`, with the type of their result
            in the brackets.
    """
    signature = inspect.signature(steps)
    (*_, result) = get_args(signature.return_annotation)
    vars(call)["__signature__"] = signature.replace(return_annotation=result)
