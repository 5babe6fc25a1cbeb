"""How a test waits for what somebody else does: for the thing itself, never for a time that it should take."""

import time

PATIENCE_S = 60
PAUSE_S = 0.005


def until(condition, what, *, patience_s=PATIENCE_S, pause_s=PAUSE_S):
    """Wait until a condition holds.

    Args:
        condition: is called again and again; may assert that waiting still makes sense.
        what: what is waited for, for the one who reads that it did not come; if it is called, what it then answers.
        patience_s: a bound for a broken program, not a limit that a busy machine should ever come near.
        pause_s: the time between two calls; 0 for what does not last.

    Returns:
        The condition's last answer, which is true.
    """
    deadline = time.monotonic() + patience_s
    while not (held := condition()):
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(pause_s)
    return held
