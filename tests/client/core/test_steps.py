"""Effects: what the steps of the client ask of the shell that runs them."""

import pytest

from stablelog.client.core.steps import NOW, Now, Open, Pause, as_steps


def test_a_function_as_steps_has_no_effect_and_its_result():
    steps = as_steps(lambda: 5)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value == 5


def test_steps_of_a_function_raise_what_it_raises_when_they_run_and_not_before():
    def failing():
        raise KeyError("mine")

    steps = as_steps(failing)
    with pytest.raises(KeyError, match="mine"):
        next(steps)


def test_a_connection_is_opened_with_the_clients_own_settings_unless_it_is_a_probe():
    assert Open("h:1").probe is None


def test_effects_are_told_apart_by_their_classes():
    """An empty tuple and one of a number are equal to others; a shell must not compare them."""
    assert isinstance(NOW, Now)
    assert NOW == ()
    assert not isinstance(Pause(1), Now)
