"""Running the steps of the client: the loop that carries out their effects, and a clock that only pauses move."""

from stablelog.client.core.steps import Call, Now, Pause
from stablelog.errors import UnavailableError


def run_steps(steps, perform):
    """Run steps to their end, and return their result.

    Args:
        steps: the steps.
        perform: carries out an effect, and returns its answer. An error of the network that it raises is raised in the
            steps.
    """
    answer, failure = None, None
    while True:
        try:
            effect = steps.send(answer) if failure is None else steps.throw(failure)
        except StopIteration as end:
            return end.value
        answer = failure = None
        try:
            answer = perform(effect)
        except (OSError, UnavailableError) as error:
            failure = error


class ScriptedTime:
    """The effects that need no connection, in a time that only pauses move.

    Attributes:
        now: the seconds of the clock.
        pauses: the seconds of each pause.
    """

    def __init__(self):
        self.now, self.pauses = 0.0, []

    def perform(self, effect):
        match effect:
            case Now():
                return self.now
            case Pause(seconds):
                self.pauses.append(seconds)
                self.now += seconds
            case Call(function):
                return function()
            case _:
                raise AssertionError(f"{effect} needs a connection")
        return None
